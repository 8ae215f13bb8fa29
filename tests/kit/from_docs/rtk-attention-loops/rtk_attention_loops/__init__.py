"""Describes the plugin. Imported whenever rtk starts; what does the work is imported only where it is chosen."""

from pydantic import Field
from rtk.plugin import Options, Plugin, hookimpl


class BackendOptions(Options):
    block: int = Field(512, ge=1, description="queries of one request that are scored at once: bounds scratch memory")


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="attention",
            name="loops",
            summary="a plain loop over requests, in torch, summed in float32",
            target="rtk_attention_loops.backend:Loops",
            options=BackendOptions,
        )
    ]
