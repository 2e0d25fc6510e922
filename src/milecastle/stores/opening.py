"""Opening stores by name or URL, through a registry users can extend.

Our own stores are opened by their package's module ``opening``, which is imported when its
scheme is used. An unregistered scheme is looked up in installed packages' entry points, group
``milecastle.stores``. Nothing else is ever imported for a URL.

Errors never repeat a URL, because a password may be anywhere in it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from os import PathLike, fspath
from typing import TYPE_CHECKING, Protocol, cast

from milecastle.errors import InvalidRequest
from milecastle.ports.maintenance import Unopened
from milecastle.ports.store import Store, require_capabilities

if TYPE_CHECKING:
    from milecastle.stores.offloading import ObjectStorage, SweepReport
    from milecastle.stores.sharded import Shards

StoreFactory = Callable[[str], Store]


class _Opening(Protocol):
    def open_url(self, url: str, /) -> Store: ...

    def unopened(self, url: str, /) -> Unopened | None: ...


def _memory() -> _Opening:
    from milecastle.stores.memory import opening

    return opening


def _sqlite() -> _Opening:
    from milecastle.stores.sqlite import opening

    return opening


def _file() -> _Opening:
    from milecastle.stores.jsonl import opening

    return opening


def _postgres() -> _Opening:
    with _needing_packages("PostgreSQL", "postgres"):
        from milecastle.stores.postgres import opening
    return opening


def _sharded() -> _Opening:
    with _needing_packages("PostgreSQL", "postgres"):
        from milecastle.stores.sharded import opening
    return opening


@contextmanager
def _needing_packages(what: str, extra: str) -> Generator[None]:
    try:
        yield
    except ImportError as error:
        raise InvalidRequest(
            f"{what} needs packages that are not installed ({error}): "
            f"pip install milecastle[{extra}]"
        ) from None


_GROUP = "milecastle.stores"

_own: dict[str, Callable[[], _Opening]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "file": _file,
    "postgresql": _postgres,
    "postgres": _postgres,
    "shards": _sharded,
}
_factories: dict[str, StoreFactory] = {}
"""Those of users and of installed packages: they come before our own."""


def register_store(name: str, factory: StoreFactory) -> None:
    """Register a store: ``factory(url)`` is called for ``name`` itself and for ``name://...``.

    A factory whose stores migrate when they are opened has an attribute ``unopened``, a callable
    that returns what ``milecastle doctor`` and ``migrate`` use instead of the store.
    """
    _factories[name] = factory


def find_store(url: str) -> Store:
    own = _own_opening(url)
    store = own.open_url(url) if own else _factory_of(url)(url)
    require_capabilities(store)
    return store


def with_objects(store: Store, objects: str | ObjectStorage | None) -> Store:
    """The store with large values in object storage; unchanged without one."""
    if objects is None:
        return store
    if store.replica is not None:
        raise InvalidRequest(
            "replica= in the store's URL and object storage cannot be combined yet: leave one out"
        )
    with _needing_packages("object storage", "objects"):
        from milecastle.stores.offloading import ObjectStorage, SharedObjects, offload
    if isinstance(objects, str):
        return offload(store, SharedObjects(objects))
    if not isinstance(cast("object", objects), ObjectStorage):
        raise InvalidRequest(
            "objects= takes a URL such as 's3://bucket/prefix' or an ObjectStorage, not "
            f"{type(objects).__name__}"
        )
    threshold, patience = objects.threshold, objects.patience
    return offload(store, SharedObjects(objects.url, threshold=threshold, patience=patience))


def sweep_objects(store: Store, tenant: str, *, grace: float, dry_run: bool) -> SweepReport:
    with _needing_packages("object storage", "objects"):
        from milecastle.stores.offloading import OffloadingStore, sweep
    if not isinstance(store, OffloadingStore):
        raise InvalidRequest(
            "this store was opened without object storage, so there is nothing to sweep: pass "
            "objects=, or set MILECASTLE_OBJECTS for the command line"
        )
    return sweep(store, tenant, grace=grace, dry_run=dry_run)


def find_unopened(url: str) -> Unopened | None:
    own = _own_opening(url)
    if own is not None:
        return own.unopened(url)
    unopened = getattr(_factory_of(url), "unopened", None)
    return None if unopened is None else cast("Unopened", unopened(url))


def find_shards(url: str) -> Shards:
    if _scheme_of(url) != "shards":
        raise InvalidRequest("only a map of databases has shards: give its file, shards.toml")
    with _needing_packages("PostgreSQL", "postgres"):
        from milecastle.stores.sharded.opening import shards_of
    return shards_of(url)


def _own_opening(url: str) -> _Opening | None:
    scheme = _scheme_of(url)
    return _own[scheme]() if scheme in _own and scheme not in _factories else None


def _scheme_of(url: str) -> str:
    scheme, found, _ = url.partition("://")
    return "shards" if not found and url.endswith(".toml") else scheme


def _factory_of(url: str) -> StoreFactory:
    scheme = _scheme_of(url)
    factory = _factories.get(scheme) or _from_packages(scheme)
    if factory is None:
        _refuse_path(url)
        known = ", ".join(f"{name}://" for name in sorted({*_own, *_factories}))
        raise InvalidRequest(
            f"no store is registered for {_named(url)}; registered: {known}; register_store(name, "
            f"factory) adds one, as does a package with an entry point in the group '{_GROUP}'"
        )
    return factory


def require_store(given: object) -> None:
    """Refuse anything but a store: a path, a class, another library's checkpointer."""
    if isinstance(given, PathLike):
        _refuse_path(str(fspath(cast("PathLike[str]", given))))
        raise InvalidRequest("store= takes a URL, not a path: file:///absolute/dir for a folder")
    if isinstance(given, type) or not callable(getattr(given, "commit", None)):
        called = given.__name__ if isinstance(given, type) else type(given).__name__
        raise InvalidRequest(
            "store= takes a URL such as 'sqlite:///runs.db', a registered name or a Store, not "
            f"{called}"
        )
    require_capabilities(given)


def _refuse_path(given: str) -> None:
    """A database file's path is repeated in the message: it contains no password."""
    import re

    if re.fullmatch(r"[\w./ -]+\.(db|sqlite3?)", given):
        raise InvalidRequest(f"a store is a URL: write store='sqlite:///{given}'")
    if re.fullmatch(r"[\w. -]+/", given):
        raise InvalidRequest(f"a store is a URL: write store='file://{given[:-1]}'")


def _named(url: str) -> str:
    import re

    found = re.match("([A-Za-z][A-Za-z0-9+.-]*)://", url)
    return f"'{found[1]}'" if found else "this value: it is neither a URL nor a registered name"


def _from_packages(scheme: str) -> StoreFactory | None:
    from importlib.metadata import entry_points

    found = {point.value: point for point in entry_points(group=_GROUP, name=scheme)}
    if not found:
        return None
    if len(found) > 1:
        raise InvalidRequest(
            f"several packages provide a store for '{scheme}': {', '.join(sorted(found))}; "
            "choose one with register_store(name, factory)"
        )
    value, point = found.popitem()
    try:
        factory = cast("StoreFactory", point.load())
    except (ImportError, AttributeError) as error:
        raise InvalidRequest(f"the store for '{scheme}' at {value} cannot be loaded") from error
    if not callable(cast("object", factory)):
        raise InvalidRequest(f"the store for '{scheme}' at {value} is not a factory")
    _factories[scheme] = factory
    return factory
