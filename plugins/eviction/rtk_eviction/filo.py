"""First in, last out: the leaf that entered the cache last goes first. Ties: lower node id first."""

from rtk.plugin import EvictionPolicy, NodeView, Options, Plugin, hookimpl


class Filo(EvictionPolicy):
    facts = frozenset({"created"})

    def __init__(self, options: Options) -> None:
        pass

    def key(self, node: NodeView) -> tuple[int]:
        return (-node.created,)


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="eviction",
            name="filo",
            summary="newest entry goes first, used or not",
            target="rtk_eviction.filo:Filo",
        ),
    ]
