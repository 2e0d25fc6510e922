"""A manifest describes a graph: nodes, edges, channels and the types in them, not the nodes' code.

Two graphs with equal manifests are the same graph to a paused thread. A node's source is not
part of it, so fixing a bug does not strand a thread.

Fields that are empty in most graphs (``types``, ``subgraph``, ``renamed_from``) are omitted if
empty.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
import msgspec.structs
from msgspec import UNSET, UnsetType

from milecastle.errors import CodecError
from milecastle.support.prepared import prepared

START: Final = "__start__"
END: Final = "__end__"

EdgeKind = Literal["fixed", "when", "router"]


class NodeInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    version: str = ""
    subgraph: Manifest | UnsetType = UNSET
    renamed_from: tuple[str, ...] | UnsetType = UNSET


class EdgeInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str
    target: str
    kind: EdgeKind = "fixed"
    label: str = ""


class ChannelInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field of the state. An optional channel may be missing from an older thread."""

    name: str
    type: str
    reducer: str = "last"
    optional: bool = False
    renamed_from: tuple[str, ...] | UnsetType = UNSET


TypeKind = Literal["dict", "record", "model", "enum"]
"""How values of a type are stored. A record is a dataclass or a struct."""


class TypeInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A type used in channels, at any depth: its fields, like a state's channels.

    An enum's fields are its members; a flag's type is its value.
    """

    name: str
    fields: tuple[ChannelInfo, ...]
    kind: TypeKind


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A graph's structure, in declaration order."""

    nodes: tuple[NodeInfo, ...]
    edges: tuple[EdgeInfo, ...]
    channels: tuple[ChannelInfo, ...]
    types: tuple[TypeInfo, ...] | UnsetType = UNSET

    @property
    def fingerprint(self) -> str:
        """The manifest's hash: equal in every process and on every Python version.

        Labels are for drawings; renaming a predicate does not make another graph.
        """
        import hashlib

        return hashlib.sha256(self._bare().to_bytes()).hexdigest()[:32]

    def _bare(self) -> Manifest:
        replace = msgspec.structs.replace
        nodes = tuple(
            replace(node, subgraph=node.subgraph._bare()) if node.subgraph else node
            for node in self.nodes
        )
        edges = tuple(replace(edge, label="") for edge in self.edges)
        return replace(self, nodes=nodes, edges=edges)

    @property
    def first(self) -> tuple[str, ...]:
        """Nodes running first; empty if a predicate or a router decides."""
        edges = [edge for edge in self.edges if edge.source == START]
        return tuple(edge.target for edge in edges if all(one.kind == "fixed" for one in edges))

    def to_bytes(self) -> bytes:
        """Canonical form, stored and hashed."""
        return msgspec.json.encode(self, order="sorted")

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """The inverse of ``to_bytes``. An unknown field or a wrong type is a ``CodecError``."""
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CodecError(f"the manifest of the graph cannot be decoded: {error}") from None


prepared(Manifest)  # it refers to itself, so not before its name is known
