"""Describes the plugin. Imported whenever rtk starts; what does the work is imported only where it is chosen."""

from pydantic import Field

from rtk.plugin import Options, Plugin, hookimpl


class PolicyOptions(Options):
    attention_tokens: int = Field(
        4096, ge=1, description="position in a prompt at which a token costs twice what the first one costs"
    )


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="eviction",
            name="gdsf",
            summary="greedy dual size frequency: what is cheap to compute again and seldom reused goes first",
            target="rtk_eviction_gdsf.policy:Policy",
            options=PolicyOptions,
        )
    ]
