"""Operations for coding agents: their scopes, what they hide, and how much they return."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from milecastle import (
    END,
    START,
    App,
    Context,
    ExecutionError,
    Keyring,
    StateGraph,
    append,
    interrupt,
)
from milecastle.cli.verbs.explain import find_page
from milecastle.server import Identity
from milecastle.server.identity import TokenScope
from milecastle.server.mcp.operations import OperationTools
from milecastle.server.mcp.tools import GraphTools
from milecastle.server.redaction import Redact
from milecastle.server.service import Service
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.views.decoding import decode
from milecastle.views.documents import ExplainDocument
from tests.acceptance.server.mcp_client import Polling, ask, client
from tests.unit.server.test_secrets import one_of

SECRET = "hush-hush"
THREADS = ("asks", "asked", "fails", "ends", "hears")


class Story(TypedDict):
    """Whatever it is told."""

    kind: str
    told: NotRequired[Annotated[list[Any], append]]


def story(store: Any, encryption: Keyring | None = None) -> App[Story]:
    """A graph that repeats a secret wherever text can be."""
    graph: StateGraph[Story] = StateGraph(Story, name="story")

    @graph.node
    def tell(state: Story, ctx: Context) -> dict[str, Any]:
        kind, text = state["kind"], [*state.get("told", ()), SECRET][0]
        if kind in ("asks", "asked"):
            answer = interrupt({"question": text}, show=text, answer=one_of(SECRET, "other"))
            return {"told": [answer]}
        if kind == "fails":
            raise RuntimeError(text) from ValueError(text)
        if kind == "hears":
            return {"told": [ctx.receive("words")]}
        return {"told": [f"the end of {text}"]}

    graph.add_edges(START, "tell", END)
    return graph.compile(store=store, encryption=encryption)


def filled(app: App[Story]) -> App[Story]:
    for kind in THREADS:
        with suppress(ExecutionError):
            app.invoke({"kind": kind, "told": [SECRET]}, thread=kind)
    app.resume("asked", SECRET)
    app.send("hears", SECRET, "words", key="k")
    app.resume("hears")
    app.send("ends", SECRET, "words")
    return app


def hide(place: str, value: Any) -> Any:
    return json.loads(json.dumps(value).replace(SECRET, "[hidden]"))


def explained(code: str) -> ExplainDocument:
    page = find_page(code)
    assert page is not None
    return ExplainDocument(code=page.code, title=page.title, text=page.text)


def operations(
    app: App[Any],
    *scopes: TokenScope,
    redact: Redact | None = None,
    tenant: str = "default",
    keyring: Keyring | None = None,
) -> Any:
    def read(key: Any, chain: Any) -> Any:
        return decode(key, chain, app.graph, lambda: keyring)

    caller = Identity(tenant, frozenset(scopes), "an agent")
    return OperationTools(app.store, caller, read, explained, app=app, redact=redact).server()


async def call(caller: Client, name: str, **given: Any) -> str:
    result: Any = await caller.call_tool(name, given)
    text: str = result.content[0].text
    return text


def on_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(limited())


CALLS: dict[str, list[dict[str, Any]]] = {
    "list_threads": [{}, {"status": "failed"}, {"prefix": SECRET}],
    "show": [{"thread": one} for one in THREADS] + [{"thread": "asks", "seq": 1}],
    "history": [{"thread": one} for one in THREADS],
    "diff": [
        {"thread": one, "first": 1, "second": head}
        for one, head in (("asked", 4), ("ends", 2), ("hears", 4))
    ],
    "why": [{"thread": one} for one in THREADS],
    "queue": [{}],
    "errors": [{"code": "MC301"}],
    "answer": [
        {"thread": "asks", "question": "1.1:tell/0", "answer": "neither"},
        {"thread": "asks", "question": "none", "answer": SECRET},
    ],
    "retry": [{"thread": "ends"}],
    "fork": [{"thread": "asks", "seq": 99, "as_thread": "new"}],
    "cancel": [{"thread": "fails"}],
}


async def crawled(server: Any) -> dict[str, str]:
    """The texts that every tool returns, of every kind of thread."""
    found: dict[str, str] = {}
    async with Client(server) as caller:
        tools = [each.name for each in (await caller.list_tools()).tools]
        assert {*tools} == {*CALLS}
        for name in tools:
            for given in CALLS[name]:
                found[f"{name} {given}"] = await call(caller, name, **given)
    return found


def test_no_value_passes_the_hook(tmp_path: Path) -> None:
    """A secret in state, question, answer, message and error; without a hook it is there."""

    async def test() -> None:
        app = filled(story(SqliteStore(tmp_path / "open.db")))
        shown = await crawled(operations(app, "read", "admin"))
        planted = [key for key, text in shown.items() if SECRET in text]
        assert len([key for key in planted if key.startswith("show")]) == 6
        assert len([key for key in planted if key.startswith("diff")]) == 3
        assert any(key.startswith("answer") for key in planted)
        app = filled(story(SqliteStore(tmp_path / "hidden.db")))
        hidden = await crawled(operations(app, "read", "admin", redact=hide))
        assert [key for key, text in hidden.items() if SECRET in text] == []
        assert "[hidden]" in "".join(hidden.values())

    on_loop(test)


def test_hook_that_raises_shows_nothing() -> None:
    """Fails if the text of any exception is passed on."""

    def fails(place: str, value: Any) -> Any:
        raise KeyError(json.dumps(value))

    async def test() -> None:
        app = filled(story(MemoryStore()))
        async with Client(operations(app, "read", redact=fails)) as caller:
            assert "unexpected KeyError" in (said := await call(caller, "show", thread="asks"))
            assert SECRET not in said

    on_loop(test)


def test_encrypted_thread_is_shown_without_its_state() -> None:
    """Fails if a thread that cannot be decrypted cannot be looked at."""
    ring = Keyring({"main": b"k" * 32}, store=MemoryStore())

    async def test() -> None:
        app = filled(story(MemoryStore(), ring))
        async with Client(operations(app, "read")) as caller:
            shown = json.loads(await call(caller, "show", thread="asks"))
            assert (shown["state"], shown["status"]) == (None, "interrupted")
            assert "$" in shown["undecoded"]
            said = await call(caller, "diff", thread="asked", first=1, second=2)
            assert SECRET not in said
            assert "[MC" in said
        async with Client(operations(app, "read", keyring=ring)) as caller:
            assert SECRET in await call(caller, "show", thread="asks")

    on_loop(test)


def test_writing_needs_the_scope_admin() -> None:
    """Fails if only a missing app kept a reader from writing."""
    writing: dict[str, dict[str, Any]] = {
        "retry": {"thread": "fails"},
        "cancel": {"thread": "asks"},
        "answer": {"thread": "asks", "question": "1.1:tell/0", "answer": "other"},
        "fork": {"thread": "ends", "seq": 1, "as_thread": "new"},
    }

    async def test() -> None:
        app = filled(story(MemoryStore()))
        before = [*app.store.threads("default")]
        async with Client(operations(app, "read", "run", "answer")) as caller:
            tools = (await caller.list_tools()).tools
            assert {each.name for each in tools if not each.annotations} == {*writing}
            for name, given in writing.items():
                assert "needs a token with the scope admin" in await call(caller, name, **given)
        assert [*app.store.threads("default")] == before
        async with Client(operations(app, "admin")) as caller:
            assert "the scope read" in await call(caller, "show", thread="asks")
            for name, given in writing.items():
                if name != "cancel":
                    assert "needs a token" not in await call(caller, name, **given)
        assert app.answers("asks")[0].by is not None
        async with Client(operations(app, "read", "admin", tenant="other")) as caller:
            for name, given in writing.items():
                assert "[MC" in await call(caller, name, **given)

    on_loop(test)


def test_results_are_bounded_and_pages_lose_nothing() -> None:
    """Fails if a result is cut in the middle of its JSON, or a page where its lines were."""

    async def test() -> None:
        app = story(MemoryStore())
        names = [f"{number:03}-{'long' * 40}" for number in range(120)]
        for name in names:
            app.invoke({"kind": "ends", "told": ["é" * 300] * 90}, thread=name)
        for _ in range(60):
            app.update_state(names[0], {"told": ["é" * 9000]})
        async with Client(operations(app, "read")) as caller:

            async def read(tool: str, **given: Any) -> Any:
                text = await call(caller, tool, **given)
                assert len(text.encode()) <= 20_000
                return json.loads(text)

            seen: list[str] = []
            after: str | None = ""
            while after is not None:
                page = await read("list_threads", after=after)
                assert 0 < len(page["threads"]) <= 50
                seen += [line["thread"] for line in page["threads"]]
                after = page["next"]
            assert seen == names
            page = await read("history", thread=names[0])
            seqs = [line["seq"] for line in page["checkpoints"]]
            while page["next"] is not None:
                page = await read("history", thread=names[0], before=page["next"])
                seqs += [line["seq"] for line in page["checkpoints"]]
            assert seqs == [*range(seqs[0], 0, -1)]
            shown = await read("show", thread=names[0])
            assert "$omitted" in shown["state"]["told"]
            changes = await read("diff", thread=names[0], first=1, second=seqs[0])
            assert len(changes["changes"]) + changes.get("left_out", {}).get("changes", 0) > 0

    on_loop(test)


def test_differences_beyond_the_bound_are_counted() -> None:
    async def test() -> None:
        app = story(MemoryStore())
        app.invoke({"kind": "ends"}, thread="t")
        app.update_state("t", {"told": [*range(300)]})
        head = app.state("t").seq
        async with Client(operations(app, "read")) as caller:
            found = json.loads(await call(caller, "diff", thread="t", first=head - 1, second=head))
        assert len(found["changes"]) == 50
        assert found["left_out"] == {"changes": 250}

    on_loop(test)


def test_graphs_served_as_tools_hide_values_too(tmp_path: Path) -> None:
    """A secret in schema, question, answer, refusal and result; without a hook it is there."""

    async def test() -> None:
        texts = list[str]()

        async def crawl(redact: Redact | None, name: str) -> str:
            app = story(SqliteStore(tmp_path / name))
            service = Service([app], worker=True, redact=redact)
            caller = Identity("default", frozenset(("read", "run", "answer")))
            async with service.running():
                server = GraphTools(service, lambda ctx: caller).server()
                polling = Polling(lambda params: {"action": "cancel"})
                async with client(server, polling) as one:
                    texts[:] = [(await one.list_tools()).model_dump_json()]
                    for kind in ("ends", "fails"):
                        result = await one.call_tool("story", {"kind": kind, "told": [SECRET]})
                        texts.append(result.model_dump_json())
                    asked = {"kind": "asks", "told": [SECRET]}
                    waiting = asyncio.ensure_future(one.call_tool("story", asked))
                    while "input_required" not in polling.statuses:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                    waiting.cancel()
                    task = await ask(one.session, "get", polling.ids[-1])
                    texts.append(json.dumps(task))
                    wrong = {"action": "accept", "content": {"answer": "neither"}}
                    with pytest.raises(MCPError) as refused:
                        await ask(
                            one.session,
                            "update",
                            polling.ids[-1],
                            {next(iter(task["inputRequests"])): wrong},
                        )
                    texts.append(str(refused.value))
            return "\n".join(texts)

        assert (await crawl(None, "open.db")).count(SECRET) >= 4
        assert SECRET not in await crawl(hide, "hidden.db")

    on_loop(test)
