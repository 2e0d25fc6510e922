"""Opening stores by name or URL, through a registry that users can extend.

An unregistered scheme is looked up in the entry points of installed packages, group
``milecastle.stores``. Nothing else is ever imported for a URL.

Errors never repeat a URL, because a password may be anywhere in it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from typing import TYPE_CHECKING, Literal, cast

from milecastle.errors import InvalidRequest
from milecastle.ports.maintenance import Unopened
from milecastle.ports.store import Store, refuse_former_shape

if TYPE_CHECKING:
    from milecastle.stores.offloading import ObjectStorage, SweepReport
    from milecastle.stores.sharded import PlannedMove, ShardMap

StoreFactory = Callable[[str], Store]


def _memory(url: str) -> Store:
    from milecastle.stores.memory import MemoryStore

    return MemoryStore()


def _sqlite(url: str) -> Store:
    from milecastle.stores.sqlite import SqliteStore

    path, synchronous = _sqlite_place(url)
    return SqliteStore(path, synchronous=synchronous)


def _sqlite_unopened(url: str) -> Unopened:
    from milecastle.stores.sqlite import SqliteFile

    return SqliteFile(_sqlite_place(url)[0])


def _sqlite_place(url: str) -> tuple[str, Literal["full", "normal"]]:
    """Three slashes and a relative path, or four and an absolute one; ``?synchronous=normal``."""
    from urllib.parse import parse_qsl, unquote

    place, _, query = url.partition("://")[2].partition("?")
    path = unquote(place[1:])
    if not path or not place.startswith("/"):
        raise InvalidRequest(
            "this sqlite:// URL has no file: write sqlite:///relative.db or sqlite:////absolute.db"
        )
    if path == ":memory:":
        raise InvalidRequest("a SQLite store needs a file: use memory:// for a store in memory")
    options = dict(parse_qsl(query, keep_blank_values=True))
    synchronous = options.pop("synchronous", "full")
    if options:
        raise InvalidRequest(
            "this sqlite:// URL has an unknown option; the only option is synchronous"
        )
    if synchronous not in ("full", "normal"):
        raise InvalidRequest("synchronous must be 'full' or 'normal'")
    return path, "normal" if synchronous == "normal" else "full"


def _file(url: str) -> Store:
    """A folder: ``file:///absolute/dir``, or ``file://relative/dir`` from the working directory."""
    import re
    from urllib.parse import unquote

    from milecastle.stores.jsonl import JsonlStore

    place, _, query = url.partition("://")[2].partition("?")
    path = unquote(place)
    if not path or query:
        raise InvalidRequest(
            "this file:// URL has no folder, or has options: write file:///absolute/dir or "
            "file://relative/dir"
        )
    return JsonlStore(path[1:] if re.match("/[A-Za-z]:", path) else path)


def _postgres(url: str) -> Store:
    """``postgresql://user@host/database``; options are listed at ``PostgresStore``."""
    with _needing_packages("PostgreSQL", "postgres"):
        from milecastle.stores.postgres import PostgresStore
    return PostgresStore(url)


def _postgres_unopened(url: str) -> Unopened:
    with _needing_packages("PostgreSQL", "postgres"):
        from milecastle.stores.postgres import PostgresServer
    return PostgresServer(url)


def _shards(url: str) -> Store:
    """The file of a map: ``shards.toml``, or ``shards:///absolute/shards.toml``."""
    with _needing_packages("PostgreSQL", "postgres"):
        from milecastle.stores.sharded import ShardedStore
    return ShardedStore(_map_place(url))


def _shards_unopened(url: str) -> Unopened:
    with _needing_packages("PostgreSQL", "postgres"):
        from milecastle.stores.sharded import MapServers, read_map
    return MapServers(read_map(_map_place(url)))


def _map_place(url: str) -> str:
    _, found, place = url.partition("://")
    return place if found else url


def init_shards(url: str) -> Sequence[str]:
    """Initialise the databases of a map; the names of those that were not yet."""
    shards = _map_of(url)
    from milecastle.stores.sharded import initialise

    return initialise(shards)


def move_shards(url: str, numbers: Iterable[int], to: str) -> Iterator[tuple[int, bool]]:
    """Move shards of a map to one of its databases; each, and whether it was elsewhere."""
    shards = _map_of(url)
    from milecastle.stores.sharded import move_shard

    return ((number, move_shard(shards, number, to)) for number in numbers)


def plan_shards(url: str, seconds: float) -> Sequence[PlannedMove]:
    """Moves that would make the databases of a map about equally large and busy."""
    shards = _map_of(url)
    from milecastle.stores.sharded import plan_moves

    return plan_moves(shards, seconds=seconds)


def _map_of(url: str) -> ShardMap:
    if _scheme_of(url) != "shards":
        raise InvalidRequest("only a map of databases has shards: give its file, shards.toml")
    with _needing_packages("PostgreSQL", "postgres"):
        from milecastle.stores.sharded import read_map
    return read_map(_map_place(url))


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

_factories: dict[str, StoreFactory] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "file": _file,
    "postgresql": _postgres,
    "postgres": _postgres,
    "shards": _shards,
}
_unopened: dict[str, Callable[[str], Unopened]] = {
    "sqlite": _sqlite_unopened,
    "postgresql": _postgres_unopened,
    "postgres": _postgres_unopened,
    "shards": _shards_unopened,
}


def register_store(name: str, factory: StoreFactory) -> None:
    """Register a store: ``factory(url)`` is called for ``name`` itself and for ``name://...``.

    A factory whose stores migrate when they are opened has an attribute ``unopened``, a callable
    that returns what ``milecastle doctor`` and ``migrate`` use instead of the store.
    """
    _factories[name] = factory
    _unopened.pop(name, None)


def find_store(url: str) -> Store:
    """Open a store by name or URL."""
    store = _factory_of(url)(url)
    refuse_former_shape(store)
    return store


def with_objects(store: Store, objects: str | ObjectStorage | None) -> Store:
    """The store with its large values in an object storage; the store itself without one."""
    if objects is None:
        return store
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
    """Remove the objects of a tenant that nobody names; ``InvalidRequest`` without any."""
    with _needing_packages("object storage", "objects"):
        from milecastle.stores.offloading import OffloadingStore, sweep
    if not isinstance(store, OffloadingStore):
        raise InvalidRequest(
            "this store was opened without object storage, so there is nothing to sweep: pass "
            "objects=, or set MILECASTLE_OBJECTS for the command line"
        )
    return sweep(store, tenant, grace=grace, dry_run=dry_run)


def find_unopened(url: str) -> Unopened | None:
    """What can be asked about a store that must not be opened; ``None``: it may be opened."""
    factory = _factory_of(url)
    unopened = _unopened.get(_scheme_of(url)) or getattr(factory, "unopened", None)
    return None if unopened is None else cast("Unopened", unopened(url))


def _scheme_of(url: str) -> str:
    """The scheme of a URL; that of a map for the name of its file."""
    scheme, found, _ = url.partition("://")
    return "shards" if not found and url.endswith(".toml") else scheme


def _factory_of(url: str) -> StoreFactory:
    scheme = _scheme_of(url)
    factory = _factories.get(scheme) or _from_packages(scheme)
    if factory is None:
        _refuse_path(url)
        known = ", ".join(f"{name}://" for name in sorted(_factories))
        raise InvalidRequest(
            f"no store is registered for {_named(url)}; registered: {known}; register_store(name, "
            f"factory) adds one, as does a package with an entry point in the group '{_GROUP}'"
        )
    return factory


def require_store(given: object) -> None:
    """Refuse what is not a store: a path, a class, the checkpointer of another library."""
    if isinstance(given, PathLike):
        _refuse_path(str(fspath(cast("PathLike[str]", given))))
        raise InvalidRequest("store= takes a URL, not a path: file:///absolute/dir for a folder")
    if isinstance(given, type) or not callable(getattr(given, "commit", None)):
        called = given.__name__ if isinstance(given, type) else type(given).__name__
        raise InvalidRequest(
            "store= takes a URL such as 'sqlite:///runs.db', a registered name or a Store, not "
            f"{called}"
        )
    refuse_former_shape(given)


def _refuse_path(given: str) -> None:
    """A path of a database file: it is repeated in the message, because it contains no password."""
    import re

    if re.fullmatch(r"[\w./ -]+\.(db|sqlite3?)", given):
        raise InvalidRequest(f"a store is a URL: write store='sqlite:///{given}'")
    if re.fullmatch(r"[\w. -]+/", given):
        raise InvalidRequest(f"a store is a URL: write store='file://{given[:-1]}'")


def _named(url: str) -> str:
    """The scheme of a URL, if it clearly has one."""
    import re

    found = re.match("([A-Za-z][A-Za-z0-9+.-]*)://", url)
    return f"'{found[1]}'" if found else "this value: it is neither a URL nor a registered name"


def _from_packages(scheme: str) -> StoreFactory | None:
    """The factory that an installed package has for a scheme; registered once it is loaded."""
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
