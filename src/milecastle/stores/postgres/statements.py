from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from psycopg import sql

from milecastle.ports.mailbox import INPUTS
from milecastle.stores.postgres import writing
from milecastle.stores.postgres.libpq import Libpq

_HERE = Path(__file__).parent
_KEY = ("shard", "tenant", "thread")
_parameter = re.compile(r"\$(\d+)")
_TRUE, _NOTHING = sql.SQL("true"), sql.SQL("")


class Statements:
    def __init__(self, schema: str, *, placed: bool = False) -> None:
        """``placed``: the database belongs to a map, and may write only its shards."""
        doubled = sql.Identifier(schema.replace("%", "%%"))
        self._parts = {
            **(_placed_parts(schema) if placed else _plain_parts()),
            "has_unread": _format(file_text("has_unread"), schema=doubled),
            "inputs": _INPUTS,
            "live": _format(file_text("memory_live")),
        }

        def load(name: str) -> bytes:
            return _load(schema, name, **self._parts)

        self._load_writes(schema, placed=placed)
        self.head = load("head")
        self.results = load("results")
        self.entry_at = load("entry_at")
        self.locate = load("locate")
        self.locate_anywhere = load("locate_anywhere")
        self.entries = load("entries")
        self.history = load("history")
        self.runs = load("runs")
        self.run = load("run")
        self.run_of_input = load("run_of_input")
        self.lock_thread = load("lock_thread")
        self.failure = load("failure")
        self.manifest = load("manifest")
        self.thread = load("thread")
        self.threads = load("threads")
        self.threads_by_status = load("threads_by_status")
        self.tags_of = load("tags_of")
        self.tagged_threads = load("tagged_threads")
        self.recent_threads = load("recent_threads")
        self.recent_threads_by_status = load("recent_threads_by_status")
        self.waking_threads = load("waking_threads")
        self.recent_runs = load("recent_runs")
        self.recent_runs_by_status = load("recent_runs_by_status")
        self.bury = load("bury")
        self.life = load("life")
        self.sweep_records = load("sweep_records")
        self.sweep_entries = load("sweep_entries")
        self.sweep_results = load("sweep_results")
        self.prune = load("prune")
        self.prune_on = load("prune_on")
        self.put_back = load("put_back")
        self.beat = load("beat")
        self.forget = load("forget")
        self.workers = load("workers")
        self.claimed = load("claimed")
        self.give_back = load("give_back")
        self.take_from = load("take_from")
        self.reclaim = load("reclaim")
        self.due_in = load("due_in")
        self.clock = load("clock")
        self.depths = load("depths")
        self.overdue = load("overdue")
        self._load_chains(schema, placed=placed)
        self._load_claims(schema, load)
        self.bucket_put = load("bucket_put")
        self.bucket_drop = load("bucket_drop")
        self.bucket_levels = load("bucket_levels")
        self.bucket_lock = load("bucket_lock")
        self.bucket_take = load("bucket_take")
        self.bucket_settle = load("bucket_settle")
        self.bucket_hold = load("bucket_hold")
        self.bucket_waiting = load("bucket_waiting")
        self.memory_get = load("memory_get")
        self.memory_scan = load("memory_scan")
        self.memory_paths = load("memory_paths")
        self.memory_words = load("memory_words")
        self.memory_touch = load("memory_touch")
        self.memory_erase = load("memory_erase")
        self.memory_sweep = load("memory_sweep")

    def _load_writes(self, schema: str, *, placed: bool) -> None:
        known = sql.Identifier(schema)

        def direct(
            name: str,
            types: Sequence[int],
            shard: sql.SQL,
            tags: str = "",
            *,
            once: bool = False,
            consuming: bool = False,
            run: bool = False,
            puts: bool = False,
            fence: sql.Composable = _TRUE,
        ) -> Libpq:
            def consumed(part: str, otherwise: sql.SQL) -> sql.Composable:
                return (
                    _format(file_text(part), schema=known, inputs=_INPUTS)
                    if consuming
                    else otherwise
                )

            parts = {"schema": known, "fence": fence, "live": _format(file_text("memory_live"))}
            after = len(writing.APPEND) if puts else 0
            for part in ("memory_given", "memory_insert"):
                numbered = _parameter.sub(lambda one: f"${int(one[1]) + after}", file_text(part))
                parts[part.removeprefix("memory_")] = _format(numbered, **parts)
            text = _format(
                file_text(name),
                **parts,
                placed=_fence(known, shard) if placed else _TRUE,
                tags=_format(tags, schema=known),
                messages=consumed("messages", _NOTHING),
                are_unread=consumed("are_unread", _TRUE),
                consumed=consumed("append_consumed" if name == "append" else "consumed", _NOTHING),
                place=consumed("append_place", sql.SQL("1")),
                has_unread=_format(file_text("has_unread"), schema=known),
                inputs=_INPUTS,
                spent=_format(file_text("spent_inputs"), topic=_INPUTS)
                if consuming
                else sql.SQL("0"),
                added=sql.SQL("1" if run else "0"),
                seen=_format(file_text("send_seen"), schema=known) if run else _NOTHING,
                recorded=_format(file_text("send_run"), schema=known) if run else _NOTHING,
                is_new=_IS_NEW if run else _TRUE,
                is_known=_IS_KNOWN if run else sql.SQL("false"),
                new=_format(file_text("new_results"), schema=known) if once else _TRUE,
                step=sql.SQL(", stepped AS (" if puts else ""),
                memory=_format(file_text("append_memory"), **parts) if puts else _NOTHING,
                shard_column=sql.SQL(", shard" if placed else ""),
                shard_value=sql.SQL(", head.shard" if placed else ""),
            )
            return Libpq.of(f"{name}_tagged" if tags else name, text.as_bytes(None), types)

        first, each = sql.SQL("$1"), sql.SQL("batch.shard")
        self.append = direct("append", writing.APPEND, first)
        written = sql.SQL("EXISTS (SELECT FROM stepped)")
        self.append_putting = direct(
            "append", writing.APPEND_PUTTING, first, puts=True, fence=written
        )
        self.append_many = direct("append_many", writing.APPEND_MANY, sql.SQL("given.shard"))
        self.keep_results = direct("keep_results", writing.KEEP_RESULTS, first)
        self.keep_once = direct("keep_results", writing.KEEP_RESULTS, first, once=True)
        self.hold_thread = direct("hold_thread", writing.HOLD_THREAD, first)
        self.commit = direct("commit", writing.COMMIT, each)
        tags = file_text("tags")
        self.commit_tagged = direct("commit", writing.COMMIT_TAGGED, each, tags)
        self.commit_consuming = direct(
            "commit", writing.COMMIT_CONSUMING, each, tags, consuming=True
        )
        self.append_consuming = direct("append", writing.APPEND_CONSUMING, first, consuming=True)
        self.wake_waiting = direct("wake_waiting", writing.WAKE_WAITING, first)
        fence = _format(file_text("memory_fence"), schema=known)
        self.memory_lock = direct("memory_lock", writing.MEMORY_LOCK, first)
        self.memory_write = direct("memory_write", writing.MEMORY, first)
        self.memory_put = direct("memory_put", writing.MEMORY, first)
        self.memory_put_batch = direct("memory_put", writing.MEMORY_BATCH, first, fence=fence)
        self.memory_batch = direct("memory_write", writing.MEMORY_BATCH, first, fence=fence)
        self.send = direct("send", writing.SEND, first)
        self.send_run = direct("send", writing.SEND_RUN, first, run=True)

    def _load_chains(self, schema: str, *, placed: bool) -> None:
        one = {name: sql.Placeholder(name) for name in (*_KEY, "seq")}
        each = {name: sql.Identifier("asked", name) for name in _KEY}
        yes, no = sql.SQL("true"), sql.SQL("false")
        readable = self._parts["readable"]
        own = _readable_each(schema) if placed else readable
        chain = _composed(
            schema, "read", **each, seq=sql.NULL, results=yes, record=yes, readable=own
        )

        def read(results: sql.SQL, record: sql.SQL) -> bytes:
            return _load(schema, "read", **one, results=results, record=record, readable=readable)

        self.read, self.read_state, self.open = read(yes, no), read(no, no), read(yes, yes)
        self.read_many = _load(schema, "read_many", chain=chain)
        self.count_results = _load(schema, "count_results", readable=readable)

    def _load_claims(self, schema: str, load: Callable[[str], bytes]) -> None:
        def claim(name: str) -> bytes:
            locked = _composed(schema, name, **self._parts)
            return _load(schema, "claim", locked=locked, **self._parts)

        self.unread = load("unread")
        self.unread_of_topic = load("unread_of_topic")
        self.count_unread = load("count_unread")
        self.discard = load("discard")
        self.marks = load("marks")
        self.restore_over = load("restore_over")
        self.restore_messages = load("restore_messages")
        self.restore = load("restore")
        parts = dict(self._parts, rates=_composed(schema, "rates"))
        for row, tenant in (("first", "first"), ("visit", "visit"), ("next", "asked")):
            parts[f"full_{row}"] = _composed(
                schema,
                "full_key",
                tenant=sql.Identifier(tenant, "tenant"),
                limit_key=sql.Identifier(row, "limit_key"),
            )
        self.look = _load(schema, "look", **parts)
        self.look_keys = _load(schema, "look_keys", **parts)
        self.take = claim("take")
        self.take_all = claim("take_all")
        self.take_each = claim("take_each")
        self.limits = load("limits")
        self.put_limit = load("put_limit")
        self.drop_limit = load("drop_limit")
        self.lock_limits = load("lock_limits")
        self.covering_limits = load("covering_limits")
        self.charge_limits = load("charge_limits")
        self.charge_keys = load("charge_keys")
        self.key_meters = load("key_meters")
        self.full_meters = load("full_meters")
        self.drop_key_meters = load("drop_key_meters")
        self.running = load("running")
        self.first_due = load("first_due")
        self.placement = load("placement")
        self.mark = load("mark")
        self.placements = load("placements")
        self.promote = load("promote")


def _load(schema: str, name: str, **parts: sql.Composable) -> bytes:
    return _composed(schema, name, **parts).as_bytes(None)


def _composed(schema: str, name: str, **parts: sql.Composable) -> sql.Composed:
    doubled = schema.replace("%", "%%")  # psycopg treats a single one as a parameter
    return _format(file_text(name), schema=sql.Identifier(doubled), **parts)


_INPUTS = sql.Literal(INPUTS)
_IS_NEW = sql.SQL("known.runs = (SELECT runs FROM seen WHERE NOT is_known)")
_IS_KNOWN = sql.SQL("(SELECT is_known FROM seen)")


def _plain_parts() -> dict[str, sql.Composable]:
    allowed = _format(file_text("allowed_all"))
    return {"placed": _TRUE, "readable": _TRUE, "here": _TRUE, "tagged": _TRUE, "allowed": allowed}


def _placed_parts(schema: str) -> dict[str, sql.Composable]:
    known = sql.Identifier(schema.replace("%", "%%"))
    here, allowed = (_format(file_text(name), schema=known) for name in ("here", "allowed"))
    shard = sql.Placeholder("shard")
    return {
        "placed": _fence(known, shard),
        "readable": _fence(known, shard, "readable"),
        "here": here,
        "tagged": _format(file_text("tagged"), schema=known, here=here),
        "allowed": allowed,
    }


def _readable_each(schema: str) -> sql.Composed:
    known = sql.Identifier(schema.replace("%", "%%"))
    return _fence(known, sql.Identifier("asked", "shard"), "readable")


def _fence(schema: sql.Identifier, shard: sql.Composable, name: str = "placed") -> sql.Composed:
    return _format(file_text(name), schema=schema, shard=shard)


def compose(text: str, **identifiers: str) -> bytes:
    quoted = {name: sql.Identifier(value) for name, value in identifiers.items()}
    return _format(text, **quoted).as_bytes(None)


def _format(text: str, **parts: sql.Composable) -> sql.Composed:
    # The text is one of our own files: as good as a literal, which no checker can see.
    template = sql.SQL(text)  # pyright: ignore[reportArgumentType]
    return template.format(**parts)


def migrations() -> list[tuple[int, str]]:
    files = sorted((_HERE / "migrations").glob("*.sql"))
    return [(int(file.name.partition("_")[0]), _text(file)) for file in files]


def file_text(name: str) -> str:
    return _text(_HERE / "sql" / f"{name}.sql")


@lru_cache(maxsize=128)
def _text(path: Path) -> str:
    return path.read_text("utf-8")
