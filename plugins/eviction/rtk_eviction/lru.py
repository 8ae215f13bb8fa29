"""Least recently used: the leaf whose latest access lies furthest back goes first. Ties: lower node id first."""

from rtk.plugin import EvictionPolicy, NodeView, Options, Plugin, hookimpl


class Lru(EvictionPolicy):
    facts = frozenset({"last_use"})

    def __init__(self, options: Options) -> None:
        pass

    def key(self, node: NodeView) -> tuple[int]:
        return (node.last_use,)


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(kind="eviction", name="lru", summary="least recently used goes first", target="rtk_eviction.lru:Lru"),
    ]
