"""A session: the options given on the command line, and what it opened.

Which store, first found wins: ``--store``; the app's own store; the
environment; pyproject.toml; ``runs.db`` in this folder, if it is there.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

import click
import msgspec

from milecastle.app.application import App
from milecastle.app.checkpoints import CheckpointStore
from milecastle.app.settings import ProjectSettings, Setting, read_settings
from milecastle.app.state_graph import StateGraph
from milecastle.app.with_store import on_one_store, with_store
from milecastle.cli.loading import load, load_hook
from milecastle.cli.printing import print_document, print_lines, print_table, say
from milecastle.errors import MilecastleError, PlaintextRefused, Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.ports.maintenance import Unopened
from milecastle.ports.reading import StoreReader
from milecastle.ports.store import Chain, Store
from milecastle.stores.opening import find_store, find_unopened, with_objects
from milecastle.views.decoding import Decoded, decode
from milecastle.views.replicas import behind_words, source_of

if TYPE_CHECKING:
    from milecastle.app.encryption.keyring import Keyring

_HOST = r"(?:\[[0-9a-fA-F:.]+\]|[\w.%-]*)(?::\d{1,5})?"
_PLACE = re.compile(rf"{_HOST}(?:,{_HOST})*(?:/.*)?", flags=re.DOTALL)
_USER = re.compile(r"([\w.%+-]*)(:.*)?", flags=re.DOTALL)


def masked(url: str) -> str:
    scheme, found, rest = url.partition("://")
    if not found and re.fullmatch(r"[\w./ -]+\.toml", url):  # the file of a map
        return url
    if not re.fullmatch(r"[\w.+-]+", scheme):
        return "***"
    address, asked, query = rest.partition("?")
    options = "&".join(one if one.startswith("schema=") else "***" for one in query.split("&"))
    end = f"?{options}" if asked else ""
    if not found or address.startswith("/"):  # a registered name, or a path
        return f"{scheme}{found}{address}{end}"
    user, at, place = address.rpartition("@")
    known = _USER.fullmatch(user)
    if "@" in query or known is None or not _PLACE.fullmatch(place):
        return f"{scheme}://***"
    return f"{scheme}://{known[1]}{':***' if known[2] else ''}{at}{place}{end}"


def path_of(url: str) -> Path | None:
    scheme, _, rest = url.partition("://")
    place = unquote(rest.partition("?")[0])
    if scheme == "sqlite" and place.startswith("/"):
        return Path(place[1:]).absolute() if len(place) > 1 else None
    if scheme == "file" and place:
        return Path(place[1:] if re.match("/[A-Za-z]:", place) else place).absolute()
    return None


def check_place(url: str) -> None:
    """Refuse a store that does not exist: reading must not create one.

    Raises:
        Unavailable: there is no such file or folder.
    """
    if url.partition("://")[0] == "memory":
        raise click.UsageError(
            "a memory:// store exists only inside its process: there is nothing to inspect"
        )
    path = path_of(url)
    if path is not None and not path.exists():
        raise Unavailable(
            f"there is no store at {path}: is the path correct? A run creates a store; inspecting "
            "does not"
        )


T = TypeVar("T")


def keepers_of(session: Session, types: Iterable[Any] = ()) -> list[CheckpointStore]:
    """The store with its keys first, if there are any, then without; never empty."""
    store, types = session.store(), list(types)
    keyring = session.keyring()
    found = [CheckpointStore(store, types=types)]
    if keyring is not None:
        found.insert(0, CheckpointStore(store, types=types, encryption=keyring))
    return found


def with_keys(keepers: list[CheckpointStore], work: Callable[[CheckpointStore], T]) -> T:
    for keeper in keepers[:-1]:
        try:
            return work(keeper)
        except PlaintextRefused:
            continue
    return work(keepers[-1])


MISSING = "it has no milecastle.stores.Maintenance"
"""Why ``verify``, ``repair``, ``migrate`` and ``doctor`` do less for a store."""

_USUAL_FILE = "runs.db"
_USUAL_TENANT = "default"


class Session:
    """One call: its flags, the settings around it, the store and the app it opened."""

    def __init__(
        self,
        *,
        store: str | None = None,
        tenant: str | None = None,
        apps: Sequence[str] = (),
        as_json: bool = False,
        debug: bool = False,
    ) -> None:
        self.as_json = as_json
        self.debug = debug
        self.folder = Path.cwd()
        self.typed_store = store
        self.typed_tenant = tenant
        self.typed_apps = tuple(dict.fromkeys(apps))
        self._settings: ProjectSettings | None = None
        self._app: App[Any] | None = None
        self._opened: list[Store | Keyring] = []
        self._keyring: Keyring | None = None
        self._store: Store | None = None
        self._shared: dict[str, Store] = {}

    @property
    def settings(self) -> ProjectSettings:
        if self._settings is None:
            self._settings = read_settings(self.folder)
        return self._settings

    @property
    def app_reference(self) -> str | None:
        found = self.settings.app
        return " ".join(self.typed_apps) or (found.value if found else None)

    @property
    def named_app(self) -> str | None:
        """The app the user named, in this call or by the environment.

        A verb that only reads imports no other app: no file in a folder makes ``ls`` run code.
        """
        found = self.settings.app
        named = found.value if found and found.folder is None else None
        return " ".join(self.typed_apps) or named

    @property
    def typed_app(self) -> str | None:
        """The app, if named in this call, so a repeated command names it too."""
        return " ".join(self.typed_apps) or None

    @property
    def tenant(self) -> str:
        if self.typed_tenant:
            return self.typed_tenant
        own = self._app.tenant if self._app else _USUAL_TENANT
        found = self.settings.tenant
        return own if own != _USUAL_TENANT or found is None else found.value

    def key(self, thread: str) -> ThreadKey:
        return ThreadKey(self.tenant, thread)

    def report(self, document: msgspec.Struct, lines: Iterable[str]) -> None:
        if self.as_json:
            print_document(document)
        else:
            print_lines(lines)

    def report_table(
        self, document: msgspec.Struct, head: Sequence[str], rows: Iterable[Sequence[str]]
    ) -> None:
        if self.as_json:
            print_document(document)
        else:
            print_table(head, rows)

    def url(self) -> Setting | None:
        if self.typed_store:
            return Setting(self.typed_store, "--store")
        if self.settings.store:
            return self.settings.store
        if (self.folder / _USUAL_FILE).is_file():
            return Setting(f"sqlite:///{_USUAL_FILE}", "found in this folder")
        return None

    def store(self) -> Store:
        if self._store is None:
            self._store = self._find_store()
        return self._store

    def listed(self, store: Store, key: ThreadKey | None = None) -> StoreReader:
        """What a list is read from; says so if its state is older than the store's."""
        source, behind = source_of(store, key)
        if behind:
            say(behind_words(behind))
        return source

    def _find_store(self) -> Store:
        if self.typed_apps and not self.typed_store:
            return self._store_of_app()
        found = self.url()
        if found is not None:
            check_place(found.value)
            return self.open(found.value)
        if self.named_app:
            return self._store_of_app()
        of_app = f", or use the app's store with --app {self.app_reference}"
        raise click.UsageError(
            f"no store given, and there is no {_USUAL_FILE} here: set one with --store "
            "sqlite:///FILE, "
            "MILECASTLE_STORE, or store = ... under [tool.milecastle] in pyproject.toml"
            f"{of_app if self.app_reference else ''}{self.refused_file}"
        )

    @property
    def refused_file(self) -> str:
        """Ignored settings with the reason, for messages; "" if none."""
        path = self.settings.refused
        return f" ({path} is ignored: it, or its folder, belongs to another user)" if path else ""

    def _store_of_app(self) -> Store:
        app = self.app()
        if not app.has_store:
            raise click.UsageError(
                f"{self.app_reference} was compiled without a store: set one with --store"
            )
        return app.store

    def open(self, url: str) -> Store:
        objects = self.settings.objects
        return self._opening(with_objects(find_store(url), objects.value if objects else None))

    def open_bare(self, url: str) -> Store:
        """Open a store without object storage: the configured one belongs to another store."""
        return self._opening(find_store(url))

    def _opening(self, store: Store) -> Store:
        self._opened.append(store)
        return store

    def unopened(self, url: str) -> Unopened | None:
        """Information about a store without opening it; else the opened store."""
        found = find_unopened(url)
        if found is None:
            return self.open(url).maintenance
        check_place(url)
        return found

    def app(self) -> App[Any]:
        if self._app is None:
            found = self._load()
            if len(found) > 1:
                graphs = ", ".join(app.graph.name for app in found)
                raise click.UsageError(
                    f"{self.app_reference} has the graphs {graphs}, and this verb takes one: name "
                    "it as module:attribute"
                )
            self._app = found[0]
        return self._app

    def apps(self) -> list[App[Any]]:
        found = on_one_store(self._load())
        self._app = found[0]
        return found

    def _load(self) -> list[App[Any]]:
        setting = self.settings.app
        named = self.typed_apps or ((setting.value,) if setting else ())
        if not named:
            raise click.UsageError(
                "no graph given: use --app module:attribute, MILECASTLE_APP, or "
                f"app = ... under [tool.milecastle] in pyproject.toml{self.refused_file}"
            )
        return [app for reference in named for app in self._load_one(reference)]

    def _load_one(self, reference: str) -> list[App[Any]]:
        setting = self.settings.app
        own = self.folder
        if setting and setting.folder and setting.value == reference:
            own = setting.folder
        with self.user_code():
            return [self._assemble(found) for found in load(reference, own)]

    def hook(self, reference: str | None) -> Callable[..., Any] | None:
        if reference is None:
            return None
        with self.user_code():
            return load_hook(reference, self.folder)

    def _assemble(self, found: App[Any] | StateGraph[Any]) -> App[Any]:
        if not isinstance(found, App):
            tenant = self.typed_tenant or (self.settings.tenant or Setting("", "")).value
            found = found.compile(tenant=tenant or _USUAL_TENANT)
        if found.has_store:
            self._opened.append(found.store)
        named = self.typed_store or (self.settings.store.value if self.settings.store else None)
        if self.typed_store or (not found.has_store and named):
            return with_store(found, self._open_once(str(named)))
        return found

    def _open_once(self, url: str) -> Store:
        if url not in self._shared:
            self._shared[url] = self.open(url)
        return self._shared[url]

    def with_usual_store(self, app: App[Any]) -> App[Any]:
        if app.has_store:
            return app
        return with_store(app, self._open_once(f"sqlite:///{_USUAL_FILE}"))

    def keyring(self) -> Keyring | None:
        """The keyring for encrypted threads: from the environment, else from the app."""
        if self._keyring is None:
            if os.environ.get("MILECASTLE_KEYS"):
                from milecastle.app.encryption.keyring import Keyring

                self._keyring = Keyring.from_environment()
                self._opened.append(self._keyring)
            elif self.named_app:
                self._keyring = self.app().encryption
        return self._keyring

    def decode(self, key: ThreadKey, chain: Chain) -> Decoded:
        """The state at a chain's end; typed if this call names the app."""
        return decode(key, chain, self.app().graph if self.typed_app else None, self.keyring)

    @contextmanager
    def user_code(self) -> Generator[None]:
        """Context for running user code: with ``--json``, its output goes to stderr."""
        if not self.as_json:
            yield
            return
        with redirect_stdout(sys.stderr):
            yield

    def describe_store(self) -> str:
        found = self.url()
        return masked(found.value) if found else "the app's store"

    def close(self) -> None:
        for store in self._opened:
            with suppress(MilecastleError):
                store.close()


def end_abandoned(session: Session) -> None:
    """End the process at once: a sync node cannot be stopped, and Python would wait for it."""
    session.close()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
