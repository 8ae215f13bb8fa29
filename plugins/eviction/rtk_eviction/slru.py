"""Segmented LRU: nodes reused at least `protect_after_hits` times outlive the rest; oldest access first in a segment.

Ties: lower node id first.
"""

from pydantic import Field

from rtk.plugin import EvictionPolicy, NodeView, Options, Plugin, hookimpl


class SlruOptions(Options):
    protect_after_hits: int = Field(2, ge=1, description="hits after which a node moves to the protected segment")


class Slru(EvictionPolicy):
    facts = frozenset({"hits", "last_use"})

    def __init__(self, options: SlruOptions) -> None:
        self._protect_after = options.protect_after_hits

    def key(self, node: NodeView) -> tuple[bool, int]:
        return node.hits >= self._protect_after, node.last_use


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="eviction",
            name="slru",
            summary="segmented LRU: reused prefixes outlive one-off ones",
            target="rtk_eviction.slru:Slru",
            options=SlruOptions,
        )
    ]
