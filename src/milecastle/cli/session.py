"""A session: what one call of the command line was told, and what it opened.

Which store, first found wins: ``--store``; the store that the app was compiled with; the
environment; pyproject.toml; ``runs.db`` in this folder, if it is there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from milecastle.app.application import App
from milecastle.app.opening import find_store
from milecastle.app.settings import Setting, Settings, read_settings
from milecastle.cli.loading import load
from milecastle.cli.places import check_place, masked
from milecastle.errors import MilecastleError
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store

if TYPE_CHECKING:
    from milecastle.app.keyring import Keyring

__all__ = ["Session"]

_USUAL_FILE = "runs.db"
_USUAL_TENANT = "default"


class Session:
    """One call: its flags, the settings around it, the store and the app that it opened."""

    def __init__(
        self,
        *,
        store: str | None = None,
        tenant: str | None = None,
        app: str | None = None,
        as_json: bool = False,
        debug: bool = False,
    ) -> None:
        self.as_json = as_json
        self.debug = debug
        self.folder = Path.cwd()
        self._store_flag = store
        self._tenant_flag = tenant
        self._app_flag = app
        self._settings: Settings | None = None
        self._app: App[Any] | None = None
        self._opened: list[Store | Keyring] = []
        self._keyring: Keyring | None = None
        self._store: Store | None = None

    @property
    def settings(self) -> Settings:
        """What the environment and pyproject.toml say."""
        if self._settings is None:
            self._settings = read_settings(self.folder)
        return self._settings

    @property
    def app_reference(self) -> str | None:
        """The app that was named, by flag or setting."""
        found = self.settings.app
        return self._app_flag or (found.value if found else None)

    @property
    def typed_app(self) -> str | None:
        """The app, if it was named in this very call: whoever repeats the call must do so too."""
        return self._app_flag

    @property
    def tenant(self) -> str:
        """Whose threads are meant."""
        if self._tenant_flag:
            return self._tenant_flag
        own = self._app.tenant if self._app else _USUAL_TENANT
        found = self.settings.tenant
        return own if own != _USUAL_TENANT or found is None else found.value

    def key(self, thread: str) -> ThreadKey:
        """A thread of the tenant."""
        return ThreadKey(self.tenant, thread)

    def url(self) -> Setting | None:
        """The store that was named, by flag or setting, or the usual file."""
        if self._store_flag:
            return Setting(self._store_flag, "--store")
        if self.settings.store:
            return self.settings.store
        if (self.folder / _USUAL_FILE).is_file():
            return Setting(f"sqlite:///{_USUAL_FILE}", "found in this folder")
        return None

    def store(self) -> Store:
        """The store to read, which must be there already."""
        if self._store is None:
            self._store = self._find_store()
        return self._store

    def _find_store(self) -> Store:
        if self._app_flag and not self._store_flag:
            return self._store_of_app()
        found = self.url()
        if found is not None:
            check_place(found.value)
            return self.open(found.value)
        if self.app_reference:
            return self._store_of_app()
        raise click.UsageError(
            f"which store? There is no {_USUAL_FILE} here: name one with --store sqlite:///FILE, "
            "MILECASTLE_STORE, or store = ... under [tool.milecastle] in pyproject.toml"
        )

    def _store_of_app(self) -> Store:
        store = self.app().store
        if store is None:
            raise click.UsageError(
                f"{self.app_reference} was compiled without a store: name one with --store"
            )
        return store

    def open(self, url: str) -> Store:
        """Open a store, to be closed at the end."""
        store = find_store(url)
        self._opened.append(store)
        return store

    def app(self, reference: str | None = None) -> App[Any]:
        """The app that was named, with the store that holds for this call."""
        if self._app is None:
            named = reference or self.app_reference
            if named is None:
                raise click.UsageError(
                    "which graph? Name it with --app module:attribute, MILECASTLE_APP, or "
                    "app = ... under [tool.milecastle] in pyproject.toml"
                )
            self._app = self._assemble(named)
        return self._app

    def _assemble(self, reference: str) -> App[Any]:
        setting = self.settings.app
        own = self.folder
        if setting and setting.folder and setting.value == reference:
            own = setting.folder
        with self.user_code():
            found = load(reference, own)
        if not isinstance(found, App):
            tenant = self._tenant_flag or (self.settings.tenant or Setting("", "")).value
            found = found.compile(tenant=tenant or _USUAL_TENANT)
        if found.store is not None:
            self._opened.append(found.store)
        named = self._store_flag or self._setting_of_store()
        if self._store_flag or (found.store is None and named):
            from milecastle.app.clock import SystemClock

            return found.using(store=self.open(str(named)), clock=SystemClock())
        return found

    def keyring(self) -> Keyring | None:
        """What opens encrypted threads: the keys of the environment, else those of the app."""
        if self._keyring is None:
            if os.environ.get("MILECASTLE_KEYS"):
                from milecastle.app.keyring import Keyring

                self._keyring = Keyring.from_environment()
                self._opened.append(self._keyring)
            elif self.app_reference:
                self._keyring = self.app().encryption
        return self._keyring

    def _setting_of_store(self) -> str | None:
        return self.settings.store.value if self.settings.store else None

    @contextmanager
    def user_code(self) -> Generator[None]:
        """Where code of the user's runs: with ``--json``, what it prints goes to stderr."""
        if not self.as_json:
            yield
            return
        with redirect_stdout(sys.stderr):
            yield

    def describe_store(self) -> str:
        """The store in words, without a password."""
        found = self.url()
        return masked(found.value) if found else "the app's store"

    def close(self) -> None:
        """Close what was opened."""
        for store in self._opened:
            with suppress(MilecastleError):
                store.close()
