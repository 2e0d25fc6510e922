"""The root of the tree, and what is wrong with a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from milecastle.model.problem import Problem

__all__ = ["DefinitionError", "MilecastleError"]


class MilecastleError(Exception):
    """The root of the tree. ``code`` is stable and has a page in the docs."""

    code: ClassVar[str] = "MC000"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    cls: type[MilecastleError], args: tuple[Any, ...], data: dict[str, Any]
) -> MilecastleError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(data)
    return error


class DefinitionError(MilecastleError):
    """The graph cannot be compiled. ``problems`` holds all of them, in source order."""

    code = "MC100"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        title = f"the graph has {count} problem{'s' if count != 1 else ''}:"
        super().__init__("\n".join([title, *(f"  {problem}" for problem in self.problems)]))
