"""First in, first out: the leaf that entered the cache first goes first. Ties: lower node id first."""

from rtk.plugin import EvictionPolicy, NodeView, Options, Plugin, hookimpl


class Fifo(EvictionPolicy):
    facts = frozenset({"created"})

    def __init__(self, options: Options) -> None:
        pass

    def key(self, node: NodeView) -> tuple[int]:
        return (node.created,)


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="eviction",
            name="fifo",
            summary="oldest entry goes first, used or not",
            target="rtk_eviction.fifo:Fifo",
        ),
    ]
