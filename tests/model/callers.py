"""Callers: one call of the public interface each, noted in the history, whatever comes of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from inspect import signature
from random import Random
from typing import Any, cast
from zlib import crc32

import psycopg

from milecastle import (
    App,
    CheckpointStore,
    InvalidRequest,
    MilecastleError,
    ResumeRefused,
    RunInProgress,
)
from milecastle.app.runs.calls import IfBusy
from milecastle.app.upkeep.retention import Retention, apply_retention
from milecastle.errors import (
    Conflict,
    Corrupted,
    ExecutionError,
    MemoryChanged,
    RunError,
    StoreError,
    Unavailable,
)
from milecastle.fleet.bulk import Bulk
from milecastle.model.checkpoint import CheckpointMetadata
from milecastle.model.keys import ThreadKey
from milecastle.model.message import Message
from milecastle.ports.claims import ClaimStore
from milecastle.ports.limits import Limit
from tests.model import remembering
from tests.model.graphs import Settings, State, input_of
from tests.model.history import PAST, Call, History, Past

__all__ = ["Input", "Plan", "perform"]

_ANSWER: Any = cast("Any", App).answer
_KEYED_ANSWERS = "key" in signature(_ANSWER).parameters


class Input:
    """An operation: the thread that it is for, and what it does."""

    def __init__(
        self,
        name: str,
        key: ThreadKey,
        todo: list[str],
        *,
        keyed: bool,
        configured: bool = False,
        keys: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.key = key
        self.todo = todo
        self.keyed = keyed
        self.config = Settings(name) if configured else None
        self.keys = keys


class Plan:
    """A call that is to be made: what the history notes, and what is done.

    ``in_transaction``: it brings its own connection, so it cannot be given another.
    """

    def __init__(
        self, call: Call, act: Callable[..., Any], *, in_transaction: bool = False
    ) -> None:
        self.call = call
        self.act = act
        self.in_transaction = in_transaction


def submit(op: Input, mode: str, delay: float = 0.0, priority: int = 0) -> Plan:
    def act(app: App[State], **more: Any) -> Any:
        return app.submit(
            input_of(op.name, op.todo),
            op.key,
            key=op.name if op.keyed else None,
            if_busy=cast("IfBusy", mode.rpartition(" ")[2]),
            delay=delay,
            priority=priority,
            keys=op.keys,
            config=op.config,
            **more,
        )

    call = Call("submit", op.key, op.name, mode, op.keyed, delay, configured=bool(op.config))
    return Plan(call, act)


def invoke(op: Input, mode: str) -> Plan:
    def act(app: App[State]) -> Any:
        forced = mode == "cancel"
        key = op.name if op.keyed else None
        given = input_of(op.name, op.todo)
        return app.invoke(
            given, op.key, key=key, discard=forced, take_over=forced, config=op.config
        )

    call = Call("invoke", op.key, op.name, mode, op.keyed, configured=bool(op.config))
    return Plan(call, act)


def answer(key: ThreadKey, said: str, question: str | None = None) -> Plan:
    def act(app: App[State]) -> Any:
        more: Any = {"key": said} if _KEYED_ANSWERS else {}
        if question is not None:
            return app.answer(key, answers={question: said}, **more)
        return app.answer(key, said, **more)

    return Plan(Call("answer", key, said, "" if question is None else "by id"), act)


def send(
    key: ThreadKey,
    name: str,
    topic: str,
    *,
    keyed: bool,
    quiet: float = 0.0,
    at_most: float | None = None,
) -> Plan:
    def act(app: App[State], **more: Any) -> Any:
        if quiet:
            more |= {"quiet": quiet, "at_most": at_most}
        return app.send(key, name, topic, key=name if keyed else None, **more)

    return Plan(Call("send", key, name, topic, keyed, quiet=quiet, at_most=at_most), act)


def in_transaction(plan: Plan, connect: Callable[[], Any], *, commits: bool) -> Plan:
    """The same call in a transaction of the caller's, which then commits it or takes it back."""

    def act(app: App[State]) -> Any:
        try:
            with closing(connect()) as connection:
                found = plan.act(app, connection=connection)
                if commits:
                    connection.commit()
                else:
                    connection.rollback()
        except (sqlite3.Error, psycopg.Error) as error:
            raise Unavailable(f"the transaction ended with {type(error).__name__}") from error
        if not commits:
            raise InvalidRequest("it was rolled back on purpose")
        return found

    if plan.call.verb == "submit":
        plan.call.mode = f"{'committed' if commits else 'rolled back'} {plan.call.mode}"
    return Plan(plan.call, act, in_transaction=True)


def discard(key: ThreadKey, name: str, number: int) -> Plan:
    def act(app: App[State]) -> Any:
        return app.discard(key, number)

    return Plan(Call("discard", key, name), act)


def simple(verb: str, key: ThreadKey, **named: Any) -> Plan:
    def act(app: App[State]) -> Any:
        return getattr(app, verb)(key, **named)

    mode = " ".join(f"{name}={value}" for name, value in named.items())
    return Plan(Call(verb, key, mode=mode), act)


def remember(tenant: str, name: str, part: str) -> Plan:
    def act(app: App[State]) -> Any:
        memory = app.memory.for_tenant(tenant)
        try:
            if part == "count":
                return remembering.count(memory, name)
            return remembering.put(memory, remembering.NEWEST, name)
        except MemoryChanged as error:
            raise InvalidRequest("somebody else was faster") from error

    item = remembering.STEPS if part == "count" else remembering.NEWEST
    return Plan(Call("remember", ThreadKey(tenant, "-"), name, item), act)


def recall(tenant: str, under: str) -> Plan:
    def act(app: App[State]) -> Any:
        return under, remembering.recall(app.memory.for_tenant(tenant), under)

    return Plan(Call("recall", ThreadKey(tenant, "-"), mode=under), act)


def retain(tenant: str, *, failed: bool) -> Plan:
    """Delete what has ended, whatever its age."""

    def act(app: App[State]) -> None:
        _retain(app, tenant, Retention(older_than=timedelta(0), failed=failed))

    return Plan(Call("retain", ThreadKey(tenant, "*")), act)


ARCHIVE = Retention(archive_after=timedelta(0))


def archive(key: ThreadKey, pick: int | None, keep: int | None = None) -> Plan:
    """Archive all threads of a tenant, or prune them, and read the history of this one."""

    def act(app: App[State]) -> Any:
        if keep is None:
            _retain(app, key.tenant, ARCHIVE)
        else:
            _retain(app, key.tenant, Retention(keep_last=keep))
        return _past(app, key, pick)

    return Plan(Call("archive" if keep is None else "prune", key, mode=f"{keep or ''}"), act)


def restore(key: ThreadKey, pick: int | None) -> Plan:
    """Archive all threads of a tenant, and restore this one."""

    def act(app: App[State]) -> Any:
        _retain(app, key.tenant, ARCHIVE)
        CheckpointStore(app.store).restore_thread(key)
        return _past(app, key, pick)

    return Plan(Call("restore", key), act)


def past(key: ThreadKey, pick: int | None, copy: str = "") -> Plan:
    """Read a history; with ``copy`` also fork a checkpoint to a thread of this name, for a while.

    Only one at which nothing is left to run: workers leave the copy alone.
    """

    def act(app: App[State]) -> Any:
        found = _past(app, key, pick)
        ends = [one for one in app.history(key) if not one.next] if copy else []
        if ends and pick is not None:
            chosen, name = ends[pick % len(ends)], ThreadKey(key.tenant, copy)
            app.fork(key, at=chosen.seq, as_thread=name)
            found.append((chosen.seq, chosen.id, _digest(app, name, None)))
            app.delete(name)
        return found

    return Plan(Call("past", key, mode="fork" if copy else ""), act)


def _retain(app: App[State], tenant: str, rule: Retention) -> None:
    threads, clock = app.runner.threads, app.runner.settings.clock
    assert threads is not None
    done = apply_retention(app.store, threads.codec, tenant, rule, now=clock.now(), clock=clock)
    for error in done.unreadable.values():
        raise error


def _past(app: App[State], key: ThreadKey, pick: int | None) -> list[Past]:
    """A history, newest first, with the state of one checkpoint, or without ``pick`` of all."""
    found = list(app.history(key))
    read = {pick % len(found)} if found and pick is not None else range(len(found))
    digests = {place: _digest(app, key, _at(found[place])) for place in read}
    return [(one.seq, one.id, digests.get(place)) for place, one in enumerate(found)]


def _at(one: CheckpointMetadata) -> int | str:
    return one.id if one.seq % 2 else one.seq


def _digest(app: App[State], key: ThreadKey, at: int | str | None) -> int:
    return crc32(repr(sorted(app.state(key, at).state.items())).encode())


def bulk(action: Any, tenant: str, status: Any) -> Plan:
    def act(app: App[State]) -> Any:
        return Bulk(app).submit(action, tenant, status)

    return Plan(Call(f"bulk {action}", ThreadKey(tenant, "*"), mode=status), act)


def limit(new: Limit) -> Plan:
    def act(app: App[State]) -> Any:
        cast("ClaimStore", app.store).set_limit(new)

    return Plan(Call("limit", ThreadKey(new.tenant or "every", "-"), mode=_brief(new)), act)


def _brief(new: Limit) -> str:
    kind = new.key or ("paused" if new.paused else "")
    return f"{new.graph or 'every'} {new.concurrency} {new.rate} {kind}"


def perform(history: History, plan: Plan, app: App[State]) -> Any:
    """Make the call, and note its outcome; what it returned, or ``None``.

    An error that is not Milecastle's own is passed on: callers may not see it.
    """
    call = history.begin(plan.call)
    try:
        try:
            found = plan.act(app)
        except MilecastleError as error:
            _check_names(history, call, str(error))
            raise
    except (RunInProgress, InvalidRequest, ResumeRefused) as error:
        call.error = f"{type(error).__name__}: {str(error)[:90]}"
        history.end(call, "refused")
        return None
    except ExecutionError as error:  # of invoke: its node failed, and the input is in the log
        call.error = type(error).__name__
        history.end(call, "unknown")
        return None
    except (Conflict, StoreError, RunError) as error:
        call.error = type(error).__name__
        history.end(call, "unknown")
        if isinstance(error, Corrupted):
            history.wrong.append(f"{call.verb} of {call.key.thread} found damage: {error}")
        return None
    except MilecastleError as error:
        call.error = f"{type(error).__name__}: {str(error)[:90]}"
        history.end(call, "refused")
        history.wrong.append(f"{call.verb} raised {call.error}")
        return None
    except Exception as error:
        call.error = f"{type(error).__name__}: {str(error)[:90]}"
        history.end(call, "unknown")
        history.wrong.append(f"{call.verb} raised {call.error}")
        return None
    note_found(call, found)
    history.end(call, "returned")
    return found


def _check_names(history: History, call: Call, said: str) -> None:
    """An error names no thread but the caller's."""
    for name in history.names - {call.key.thread}:
        if f"'{name}'" in said and call.key.thread != "*":
            history.wrong.append(f"an error about {call.key.thread} names {name}: {said[:90]}")


def note_found(call: Call, found: Any) -> None:
    if call.verb in ("submit", "answer", "retry", "invoke"):
        call.run_id, call.status = found.run_id, found.status
    if call.verb in ("state", "invoke"):
        asking = sum(1 for each in found.interrupts if each.asks)
        shown = (found.status, tuple(found.next), asking, tuple(found.state.get("log", ())))
        call.status, call.found = found.status, shown
    if call.verb == "send":
        call.found, call.status = (found.number, found.reused), found.status
    if call.verb == "mailbox":
        call.found = names_of(found)
    if call.verb == "emitted":
        call.found = tuple(
            (one.seq, one.attempt, one.offset, one.begins, one.value) for one in found
        )
    if call.verb == "state" and call.found is not None:
        call.applied = applied(found.state)
    if call.verb in ("remember", "recall", *PAST):
        call.found = found
    if call.verb in ("cancel", "delete", "discard"):
        call.found = found
        if found is False:
            call.mode = "nothing to do"


def names_of(messages: Sequence[Message]) -> tuple[str, ...]:
    """Messages of callers and nodes; those about children have no name."""
    return tuple(one.value for one in messages if isinstance(one.value, str))


def applied(state: State) -> tuple[str, ...]:
    """The messages in a state. Those that parallel tasks received have a mark."""
    return (*state.get("got", ()), *cast("Any", state).get("told", ()))


def random_todo(random: Random, acts: tuple[str, ...], most: int = 4) -> list[str]:
    return [random.choice(acts or ("plain",)) for _ in range(random.randint(0, most))]
