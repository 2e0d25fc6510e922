"""A graph as a document: its manifest, its drawing, and the JSON schema of its inputs."""

from __future__ import annotations

from typing import Any

import msgspec
import msgspec.json

from milecastle.graph.schema import Channel, StateSchema
from milecastle.graph.structure import CompiledGraph

__all__ = ["input_schema"]


def input_schema(graph: CompiledGraph) -> dict[str, Any]:
    """The JSON schema of what a run of a graph can be given.

    An input is an update: no channel is required. What JSON cannot express may be anything.
    """
    schema: StateSchema = graph.schema
    components: dict[str, Any] = {}
    properties = {
        name: _schema_of(channel, components) for name, channel in schema.channels.items()
    }
    found: dict[str, Any] = {
        "title": schema.state_type.__name__,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    return {**found, "$defs": components} if components else found


def _schema_of(channel: Channel, components: dict[str, Any]) -> Any:
    annotation = channel.annotation
    try:
        if hasattr(annotation, "model_json_schema"):
            return annotation.model_json_schema()
        (found,), more = msgspec.json.schema_components([annotation], ref_template="#/$defs/{name}")
    except (TypeError, RuntimeError):
        return {}
    components.update(more)
    return found
