"""The TypeScript client: its types are those of the server, and the compiler accepts it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts.typescript_compiler import PINNED, refuse_another
from scripts.typescript_types import PLACE, described, type_of, types_text

PACKAGE = PLACE.parent.parent


def test_types_are_those_of_the_openapi_document() -> None:
    """Fails after a field of a document was renamed: run ``python scripts/typescript_types.py``."""
    assert PLACE.read_text("utf-8") == types_text(described())


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "Json"),
        ({"$ref": "#/components/schemas/RunLine"}, "RunLine"),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}, {"type": "null"}]}, "number | null"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, '("a" | "b")[]'),
        (
            {"type": "object", "additionalProperties": {"type": "string"}},
            "{ [name: string]: string }",
        ),
    ],
)
def test_schema_is_a_type(schema: Any, text: str) -> None:
    assert type_of(schema) == text


def test_package_needs_nothing_at_run_time_and_pins_its_compiler() -> None:
    found = json.loads((PACKAGE / "package.json").read_text("utf-8"))
    assert "dependencies" not in found
    pinned = PINNED.read_text("utf-8").splitlines()[-1].split()[0]
    assert found["devDependencies"] == {"typescript": pinned.removeprefix("typescript@")}
    assert not list(PACKAGE.glob("*lock*"))


def test_compiler_accepts_the_client(tmp_path: Path) -> None:
    """Seen to fail with ``next`` of a page read as a number."""
    compiler = shutil.which("tsc", path=f"{PACKAGE}/node_modules/.bin") or shutil.which("tsc")
    if compiler is None:
        pytest.skip("tsc is not installed: npm install in clients/typescript")
    done = subprocess.run(
        [compiler, "--outDir", str(tmp_path)],
        cwd=PACKAGE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "index.d.ts").exists()


def test_compiler_with_another_hash_is_refused() -> None:
    """Broken on purpose: the hashes were not compared."""
    with pytest.raises(SystemExit, match="hash"):
        refuse_another(b"another", PINNED.read_text("utf-8").split()[-1])
