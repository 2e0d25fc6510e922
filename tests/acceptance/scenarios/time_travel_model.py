"""A simple model of threads that ask: what a branch has in its log, and what it waits for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypedDict

from milecastle import END, START, App, StateGraph, Store, append, interrupt


class Talk(TypedDict, total=False):
    log: Annotated[list[str], append]


@dataclass(frozen=True)
class Kind:
    """A kind of step: its own questions, then those of its subgraph; what it adds of itself."""

    own: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    quiet: bool = False

    @property
    def questions(self) -> tuple[str, ...]:
        return self.own + self.within


KINDS = {
    "plain": Kind(quiet=True),
    "ask": Kind(("a",)),
    "both": Kind(("a", "b"), quiet=True),
    "items": Kind(("0", "1", "2")),
    "child": Kind((), ("x", "y")),
    "mixed": Kind(("a",), ("x", "y")),
}


@dataclass(frozen=True)
class Standing:
    """Where a branch stands: the step, the log, the answers that its step has."""

    step: int = 0
    log: tuple[str, ...] = ()
    answers: dict[str, str] = field(default_factory=dict[str, str])


class Model:
    """What must become of a graph made of these steps."""

    def __init__(self, kinds: list[str]) -> None:
        self.kinds = kinds

    def _name(self, step: int, question: str) -> str:
        return f"{step}{question}"

    def open(self, at: Standing) -> list[str]:
        """The questions that wait for an answer."""
        if at.step == len(self.kinds):
            return []
        names = [self._name(at.step, q) for q in KINDS[self.kinds[at.step]].questions]
        return [name for name in names if name not in at.answers]

    def go_on(self, at: Standing) -> Standing:
        """As far as it goes without an answer."""
        while at.step < len(self.kinds) and not self.open(at):
            kind = KINDS[self.kinds[at.step]]
            said = [
                f"{self._name(at.step, q)}={at.answers[self._name(at.step, q)]}"
                for q in kind.questions
            ]
            quiet = [f"{at.step}quiet"] if kind.quiet else []
            at = Standing(at.step + 1, (*at.log, *said, *quiet))
        return at

    def answer(self, at: Standing, given: dict[str, str]) -> Standing:
        return self.go_on(replace(at, answers={**at.answers, **given}))

    def branch(self, at: Standing) -> Standing:
        """A branch keeps the answers of its own nodes; its subgraph starts again."""
        if at.step == len(self.kinds):
            return at
        within = {self._name(at.step, q) for q in KINDS[self.kinds[at.step]].within}
        kept = {name: given for name, given in at.answers.items() if name not in within}
        return replace(at, answers=kept)


def build(kinds: list[str], store: Store) -> App[Talk]:
    """The graph that the model speaks of."""
    graph: StateGraph[Talk] = StateGraph(Talk)
    before: tuple[str, ...] = (START,)
    for step, kind in enumerate(kinds):
        names = _add_step(graph, step, kind)
        if kind == "items":
            for source in before:
                _map_items(graph, source, names[0], step)
        else:
            for source in before:
                for name in names:
                    graph.add_edge(source, name)
        gate = f"gate{step}"
        graph.add_node(gate, _nothing)
        for name in names:
            graph.add_edge(name, gate)
        before = (gate,)
    graph.add_edge(before[0], END)
    return graph.compile(store=store)


def _nothing(state: Any) -> None:
    return None


def _map_items(graph: StateGraph[Talk], source: str, name: str, step: int) -> None:
    def items(state: Any) -> list[str]:
        return [f"{step}{number}" for number in range(3)]

    graph.map(source, name, over=items, item="item")


def _add_step(graph: StateGraph[Talk], step: int, kind: str) -> list[str]:
    shape = KINDS[kind]
    names: list[str] = []
    if kind == "items":
        graph.add_node(f"items{step}", _ask_about_item)
        return [f"items{step}"]
    for question in shape.own:
        names.append(f"own{step}{question}")
        graph.add_node(names[-1], _asks(f"{step}{question}"))
    if shape.within:
        names.append(f"child{step}")
        graph.add_node(names[-1], _child([f"{step}{question}" for question in shape.within]))
    if shape.quiet:
        names.append(f"quiet{step}")
        graph.add_node(names[-1], _says(f"{step}quiet"))
    return names


def _child(questions: list[str]) -> App[Talk]:
    graph: StateGraph[Talk] = StateGraph(Talk)
    for name in questions:
        graph.add_node(name, _asks(name))
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph.compile()


def _says(text: str) -> Any:
    def node(state: Any) -> dict[str, Any]:
        return {"log": [text]}

    return node


def _asks(question: str) -> Any:
    def node(state: Any) -> dict[str, Any]:
        return {"log": [f"{question}={interrupt(question, answer=str)}"]}

    return node


def _ask_about_item(state: Any) -> dict[str, Any]:
    return {"log": [f"{state['item']}={interrupt(state['item'], answer=str)}"]}
