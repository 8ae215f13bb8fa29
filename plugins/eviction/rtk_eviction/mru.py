"""Most recently used: the leaf whose latest access is the newest goes first. Ties: lower node id first."""

from rtk.plugin import EvictionPolicy, NodeView, Options, Plugin, hookimpl


class Mru(EvictionPolicy):
    facts = frozenset({"last_use"})

    def __init__(self, options: Options) -> None:
        pass

    def key(self, node: NodeView) -> tuple[int]:
        return (-node.last_use,)


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(kind="eviction", name="mru", summary="most recently used goes first", target="rtk_eviction.mru:Mru"),
    ]
