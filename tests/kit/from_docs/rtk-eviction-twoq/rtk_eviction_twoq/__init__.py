"""Describes the plugin. Imported whenever rtk starts; what does the work is imported only where it is chosen."""

from pydantic import Field
from rtk.plugin import Options, Plugin, hookimpl


class PolicyOptions(Options):
    burst: int = Field(8, ge=0, description="ticks after its entry in which reuse does not yet move a prefix up")
    lead: int | None = Field(None, ge=0, description="ticks that a reused prefix is ahead of new ones; null: always")


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="eviction",
            name="twoq",
            summary="two queues: what came once leaves in order of entry, what came back by last use",
            target="rtk_eviction_twoq.policy:TwoQueues",
            options=PolicyOptions,
        )
    ]
