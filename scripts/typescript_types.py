"""Writes `clients/typescript/src/types.ts` from the OpenAPI document of the server.

`--check` writes nothing and fails when the file is stale.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from milecastle.server.documents import EmittedEvent, MissedEvent, StateEvent, StoppedEvent
from milecastle.server.openapi import describe
from milecastle.server.routes import ENDPOINTS

PLACE = Path(__file__).resolve().parent.parent / "clients" / "typescript" / "src" / "types.ts"
HEADER = """\
// Written by scripts/typescript_types.py from the OpenAPI document; do not edit it here.

/** A value of a state: whatever JSON can express. */
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    text = types_text(described())
    if not parser.parse_args().check:
        PLACE.write_text(text, encoding="utf-8")
    elif PLACE.read_text(encoding="utf-8") != text:
        print(f"{PLACE.name} is stale: run python scripts/typescript_types.py", file=sys.stderr)
        return 1
    return 0


def described() -> Mapping[str, Any]:
    return describe(ENDPOINTS, (StateEvent, EmittedEvent, MissedEvent, StoppedEvent))


def types_text(document: Mapping[str, Any]) -> str:
    """An interface for each schema of an OpenAPI document."""
    schemas: Mapping[str, Any] = document["components"]["schemas"]
    return "\n".join([HEADER, *(_interface(name, schemas[name]) for name in schemas)])


def _interface(name: str, schema: Mapping[str, Any]) -> str:
    lines = [f" * {line.strip()}".rstrip() for line in schema.get("description", "").split("\n")]
    comment = ["/**", *lines, " */"] if len(lines) > 1 else [f"/**{lines[0].removeprefix(' *')} */"]
    return "\n".join([*comment, f"export interface {name} {{", *_fields(schema), "}", ""])


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    for name, found in schema["properties"].items():
        mark = "" if name in schema["required"] else "?"
        yield f"  {name}{mark}: {type_of(found)};"


def type_of(schema: Mapping[str, Any]) -> str:
    """The TypeScript type of a schema.

    Raises:
        ValueError: it has a form that no document of ours has had.
    """
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(map(type_of, schema["anyOf"])))
    if "enum" in schema:
        return " | ".join(map(json.dumps, schema["enum"]))
    match schema.get("type"):
        case None:
            return "Json"
        case "array":
            found = type_of(schema["items"])
            return f"({found})[]" if " " in found else f"{found}[]"
        case "object":
            more = schema.get("additionalProperties")
            value = type_of(more) if isinstance(more, dict) else "Json"  # pyright: ignore[reportUnknownArgumentType]
            return f"{{ [name: string]: {value} }}"
        case "integer" | "number":
            return "number"
        case "boolean" | "string" | "null" as plain:
            return str(plain)
        case other:
            raise ValueError(f"there is no TypeScript type for {other!r}")


if __name__ == "__main__":
    sys.exit(main())
