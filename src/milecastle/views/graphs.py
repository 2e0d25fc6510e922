from __future__ import annotations

from typing import Any

import msgspec
import msgspec.json

from milecastle.codec.declared_order import in_declared_order
from milecastle.graph.schema import StateSchema
from milecastle.graph.structure import CompiledGraph


def input_schema(graph: CompiledGraph) -> dict[str, Any]:
    """The JSON schema for a graph's input.

    Without a declared input, it is an update of the state, and no key is required. A type JSON
    cannot express may be anything.
    """
    schema: StateSchema = graph.schema
    declared = schema.input
    components: dict[str, Any] = {}
    if declared is None:
        annotations = {name: channel.annotation for name, channel in schema.channels.items()}
    else:
        annotations = dict(declared.annotations)
    found: dict[str, Any] = {
        "title": declared.name if declared else schema.state_type.__name__,
        "type": "object",
        "properties": {name: _schema_of(one, components) for name, one in annotations.items()},
        "additionalProperties": False,
    }
    if declared and declared.required:
        found["required"] = list(declared.required)
    return {**found, "$defs": components} if components else found


def _schema_of(annotation: Any, components: dict[str, Any]) -> Any:
    try:
        if hasattr(annotation, "model_json_schema"):
            return annotation.model_json_schema()
        (found,), more = msgspec.json.schema_components([annotation], ref_template="#/$defs/{name}")
    except (TypeError, RuntimeError):
        return {}
    components.update(in_declared_order(more, annotation))
    return in_declared_order(found, annotation)
