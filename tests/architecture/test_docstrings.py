"""Docstrings are required for everything users import."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import pytest

import milecastle.stores
from tests.architecture.test_exports import PUBLIC

PORTS = [item for item in vars(milecastle.stores).values() if getattr(item, "_is_protocol", False)]


def is_documented(name: str, item: Any) -> bool:
    """By itself, by a base class, or by the port that a store implements."""
    return bool(inspect.getdoc(item)) or any(
        inspect.getdoc(getattr(port, name, None)) for port in PORTS if hasattr(port, name)
    )


def undocumented(name: str, item: Any) -> list[str]:
    """The class or function, and the class's own public methods, without a docstring."""
    found = [] if inspect.getdoc(item) else [name]
    if inspect.isclass(item):
        own = {k: v for k, v in vars(item).items() if not k.startswith("_")}
        methods = {k: getattr(item, k) for k, v in own.items() if callable(v) or hasattr(v, "fget")}
        found += [f"{name}.{k}" for k, v in methods.items() if not is_documented(k, v)]
    return found


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_what_users_import_has_a_docstring(module: ModuleType) -> None:
    """Seen to fail: the docstring of ``App.invoke`` deleted."""
    items = {name: getattr(module, name) for name in module.__all__}
    ours = {
        name: item
        for name, item in items.items()
        if callable(item) and str(getattr(item, "__module__", "")).startswith("milecastle")
    }
    assert [one for name, item in ours.items() for one in undocumented(name, item)] == []
