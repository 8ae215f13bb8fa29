"""By priority: the leaf of the lowest value goes first. Ties: oldest access, then lower node id."""

from rtk.plugin import EvictionPolicy, NodeView, Options, Plugin, hookimpl


class Priority(EvictionPolicy):
    facts = frozenset({"last_use", "priority"})

    def __init__(self, options: Options) -> None:
        pass

    def key(self, node: NodeView) -> tuple[int, int]:
        return node.priority, node.last_use


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="eviction",
            name="priority",
            summary="lowest request priority goes first",
            target="rtk_eviction.priority:Priority",
        ),
    ]
