"""Adapters, with the real libraries and scripted transports: there and back without loss."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, cast

import anthropic as anthropic_library
import httpx2
import openai as openai_library
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import Field
from pydantic_ai.messages import ModelMessage, ModelResponse, ThinkingPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel

from milecastle import App, ThreadKey
from milecastle.agents import AgentState, agent, anthropic, langchain, openai, pydantic_ai
from tests.unit.agents.provider_rules import anthropic_refuses, openai_refuses

Message = dict[str, Any]
ASKED = cast("Any", {"messages": [{"role": "user", "content": "When?", "id": "u"}]})


def trains(place: str) -> list[str]:
    """List the trains to a place."""
    if place == "York":
        raise LookupError(place)
    return ["9:14"]


def play(model: Callable[..., Any]) -> tuple[App[AgentState], Any, list[str]]:
    """Run an agent with this model; return its app, its state, and what was streamed."""
    app = agent(model, [trains], system="You are a guide.").compile(store="memory://")

    async def run() -> list[str]:
        events = [event async for event in app.astream(ASKED, thread="t")]
        return [event.update["delta"] for event in events if event.type == "emit"]

    deltas = asyncio.run(run())
    return app, app.state("t").state, deltas


def check(state: Any, deltas: Sequence[str]) -> None:
    """Two calls, one of which fails, and an answer in two pieces."""
    asked, good, bad, said = state["messages"][1:]
    assert [call["args"] for call in asked["tool_calls"]] == [
        {"place": "Hexham"},
        {"place": "York"},
    ]
    assert [call["given_id"] for call in asked["tool_calls"]] == ["call_a", "call_b"]
    assert (good["content"], bad["is_error"]) == ('["9:14"]', True)
    assert said["content"] == "Take the 9:14."
    assert [delta for delta in deltas if delta] == ["Take ", "the 9:14."]


class Transport:
    """Answers requests with lines of events, in turn; keeps the requests."""

    def __init__(self, *answers: Sequence[Message]) -> None:
        self._answers = list(answers)
        self.requests: list[Message] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(json.loads(request.content))
        events = self._answers.pop(0)
        if isinstance(events, int):
            return httpx2.Response(events, headers={"retry-after": "7"}, json={"error": {}})
        lines = [f"event: {one.get('type', '')}\ndata: {json.dumps(one)}\n\n" for one in events]
        content = "".join(lines).encode()
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=content)


# ---- OpenAI


def _chunk(usage: Message | None = None, **delta: Any) -> Message:
    choices = [{"index": 0, "delta": delta, "finish_reason": None}] if delta else []
    made: Message = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return made | {"choices": choices, "usage": usage}


def _piece(index: int, args: str, **more: Any) -> Message:
    name = {"name": "trains"} if more else {}
    return {"index": index, "function": {**name, "arguments": args}, "type": "function", **more}


OPENAI = (
    [
        _chunk(role="assistant", content=None),
        _chunk(tool_calls=[_piece(0, '{"pla', id="call_a")]),
        _chunk(tool_calls=[_piece(0, 'ce": "Hexham"}')]),
        _chunk(tool_calls=[_piece(1, '{"place": "York"}', id="call_b")]),
        _chunk({"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}),
    ],
    [
        _chunk(content="Take "),
        _chunk(content="the 9:14."),
        _chunk(
            {
                "prompt_tokens": 20,
                "completion_tokens": 4,
                "total_tokens": 24,
                "prompt_tokens_details": {"cached_tokens": 8},
                "completion_tokens_details": {"reasoning_tokens": 1},
            }
        ),
    ],
)


@pytest.mark.parametrize("on_loop", [False, True])
def test_openai_is_asked_in_its_form_and_its_reply_is_read(on_loop: bool) -> None:
    transport = Transport(*OPENAI)
    client: Any
    if on_loop:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(transport))
        client = openai_library.AsyncOpenAI(api_key="k", http_client=http, base_url="http://x/v1")
    else:
        plain = httpx2.Client(transport=httpx2.MockTransport(transport))
        client = openai_library.OpenAI(api_key="k", http_client=plain, base_url="http://x/v1")
    _, state, deltas = play(openai.chat("gpt-5", client=client, temperature=0))
    check(state, deltas)
    first, second = transport.requests
    assert first["messages"][0] == {"role": "system", "content": "You are a guide."}
    assert first["tools"][0]["function"]["parameters"]["required"] == ["place"]
    assert first["temperature"] == 0
    assert [*openai_refuses(second["messages"])] == []
    assert second["messages"][-1]["content"] == "LookupError: York"
    assert state["used"] == {"input": 29, "output": 6, "cache_read": 8, "reasoning": 1}


def test_refused_request_waits_as_long_as_the_service_says() -> None:
    transport = Transport(cast("Any", 429))
    http = httpx2.Client(transport=httpx2.MockTransport(transport))
    client = openai_library.OpenAI(
        api_key="k", http_client=http, base_url="http://x/v1", max_retries=0
    )
    _, state, _ = play(openai.chat("gpt-5", client=client))
    assert state["waiting"]["seconds"] == 7.0


# ---- Anthropic


def _message(**usage: int) -> Message:
    made: Message = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "claude",
    }
    made |= {"stop_reason": None, "stop_sequence": None, "usage": {"output_tokens": 0, **usage}}
    return {"type": "message_start", "message": made}


def _block(index: int, block: Message, *deltas: Message) -> Iterator[Message]:
    yield {"type": "content_block_start", "index": index, "content_block": block}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _end(output: int) -> Iterator[Message]:
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": output}}
    yield {"type": "message_stop"}


def _use(index: int, id: str, place: str) -> Iterator[Message]:
    block: Message = {"type": "tool_use", "id": id, "name": "trains", "input": {}}
    json_delta = {"type": "input_json_delta", "partial_json": json.dumps({"place": place})}
    return _block(index, block, json_delta)


ANTHROPIC = (
    [
        _message(input_tokens=5, cache_read_input_tokens=3, cache_creation_input_tokens=1),
        *_block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "hm"},
            {"type": "signature_delta", "signature": "signed"},
        ),
        *_use(1, "call_a", "Hexham"),
        *_use(2, "call_b", "York"),
        *_end(7),
    ],
    [
        _message(input_tokens=9),
        *_block(
            0,
            {"type": "text", "text": ""},
            {"type": "text_delta", "text": "Take "},
            {"type": "text_delta", "text": "the 9:14."},
        ),
        *_end(4),
    ],
)


@pytest.mark.parametrize("on_loop", [False, True])
def test_anthropic_gets_its_signed_blocks_again(on_loop: bool) -> None:
    """Fails if ``provider`` is dropped."""
    transport = Transport(*ANTHROPIC)
    client: Any
    if on_loop:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(transport))
        client = anthropic_library.AsyncAnthropic(api_key="k", http_client=http)
    else:
        plain = httpx2.Client(transport=httpx2.MockTransport(transport))
        client = anthropic_library.Anthropic(api_key="k", http_client=plain)
    _, state, deltas = play(anthropic.chat("claude", client=client, max_tokens=99))
    check(state, deltas)
    first, second = transport.requests
    assert (first["system"], first["max_tokens"]) == ("You are a guide.", 99)
    assert first["tools"][0]["input_schema"]["required"] == ["place"]
    assert [*anthropic_refuses(second["messages"])] == []
    blocks = second["messages"][1]["content"]
    assert blocks[0] == {"type": "thinking", "thinking": "hm", "signature": "signed"}
    assert [block["type"] for block in blocks] == ["thinking", "tool_use", "tool_use"]
    assert [block["is_error"] for block in second["messages"][2]["content"]] == [False, True]
    assert state["used"] == {"input": 18, "output": 11, "cache_read": 3, "cache_write": 1}


# ---- LangChain


class Scripted(BaseChatModel):
    """A chat model of LangChain that streams its script."""

    seen: list[Any] = Field(default_factory=list)
    tools: list[Any] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        self.tools += tools
        return self

    def _generate(self, messages: list[BaseMessage], *given: Any, **named: Any) -> ChatResult:
        raise NotImplementedError

    def _stream(
        self, messages: list[BaseMessage], *given: Any, **named: Any
    ) -> Iterator[ChatGenerationChunk]:
        self.seen.append(messages)
        used: Any = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
        if len(self.seen) == 1:
            blocks: Any = [{"type": "reasoning", "text": "hm", "index": 0}]
            yield ChatGenerationChunk(message=AIMessageChunk(content=blocks))
            for index, (id, place) in enumerate((("call_a", "Hexham"), ("call_b", "York"))):
                args = json.dumps({"place": place})
                piece: Any = {"name": "trains", "args": args, "id": id, "index": index}
                chunk = AIMessageChunk(content="", tool_call_chunks=[piece])
                yield ChatGenerationChunk(message=chunk)
        else:
            yield ChatGenerationChunk(message=AIMessageChunk(content="Take "))
            yield ChatGenerationChunk(
                message=AIMessageChunk(content="the 9:14.", usage_metadata=used)
            )


def test_langchain_models_are_asked_in_their_form() -> None:
    model = Scripted()
    _, state, deltas = play(langchain.chat(model))
    check(state, deltas)
    assert model.tools[0]["function"]["name"] == "trains"
    roles = [message.type for message in model.seen[1]]
    assert roles == ["system", "human", "ai", "tool", "tool"]
    last = model.seen[1][-1]
    assert isinstance(last, ToolMessage)
    assert last.status == "error"
    assert model.seen[1][2].content[0]["text"] == "hm"
    assert state["used"] == {"input": 5, "output": 2}


# ---- Pydantic AI


def test_models_of_pydantic_ai_are_asked_in_their_form() -> None:
    seen: list[list[ModelMessage]] = []

    async def script(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        seen.append(messages)
        assert [each.name for each in info.function_tools] == ["trains"]
        if len(seen) == 1:
            yield {0: DeltaThinkingPart(content="hm", signature="signed")}
            yield {
                1: DeltaToolCall(
                    name="trains", json_args='{"place": "Hexham"}', tool_call_id="call_a"
                )
            }
            yield {
                2: DeltaToolCall(
                    name="trains", json_args='{"place": "York"}', tool_call_id="call_b"
                )
            }
        else:
            yield "Take "
            yield "the 9:14."

    app, state, deltas = play(pydantic_ai.chat(FunctionModel(stream_function=script)))
    check(state, deltas)
    response = seen[1][2]
    assert isinstance(response, ModelResponse)
    assert isinstance(response.parts[0], ThinkingPart)
    assert response.parts[0].signature == "signed"
    results = [part for each in seen[1] for part in each.parts if isinstance(part, ToolReturnPart)]
    assert [part.outcome for part in results] == ["success", "failed"]
    assert app.state(ThreadKey("default", "t")).status == "completed"
