"""A manifest says what a graph is: nodes, edges and channels, and nothing of what nodes do.

Two graphs with equal manifests are the same graph to a paused thread. The source of a node is
no part of it, so that mending a bug strands nobody.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
import msgspec.structs

from milecastle.errors import CodecError

__all__ = ["END", "START", "ChannelInfo", "EdgeInfo", "Manifest", "NodeInfo"]

START: Final = "__start__"
END: Final = "__end__"

EdgeKind = Literal["fixed", "when", "router"]


class NodeInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node: its name and the version that its author declared."""

    name: str
    version: str = ""


class EdgeInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A way from one node to another. ``label`` names the predicate or the router."""

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


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The structure of a graph, in the order in which it was declared."""

    nodes: tuple[NodeInfo, ...]
    edges: tuple[EdgeInfo, ...]
    channels: tuple[ChannelInfo, ...]

    @property
    def fingerprint(self) -> str:
        """The hash of the manifest: equal in every process and on every Python version.

        Labels are for drawings; renaming a predicate does not make another graph.
        """
        import hashlib

        bare = msgspec.structs.replace(
            self, edges=tuple(msgspec.structs.replace(edge, label="") for edge in self.edges)
        )
        return hashlib.sha256(bare.to_bytes()).hexdigest()[:32]

    def to_bytes(self) -> bytes:
        """The canonical form that is stored and hashed."""
        return msgspec.json.encode(self, order="sorted")

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Read what ``to_bytes`` wrote. An unknown field or a wrong type is a ``CodecError``."""
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CodecError(f"the manifest of the graph does not decode: {error}") from None
