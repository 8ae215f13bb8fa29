"""Least frequently used: the leaf with the fewest hits goes first. Ties: oldest access, then lower node id."""

from rtk.plugin import EvictionPolicy, NodeView, Options, Plugin, hookimpl


class Lfu(EvictionPolicy):
    facts = frozenset({"hits", "last_use"})

    def __init__(self, options: Options) -> None:
        pass

    def key(self, node: NodeView) -> tuple[int, int]:
        return node.hits, node.last_use


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(kind="eviction", name="lfu", summary="least often reused goes first", target="rtk_eviction.lfu:Lfu"),
    ]
