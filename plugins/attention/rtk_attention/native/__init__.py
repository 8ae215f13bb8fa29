"""Paged attention on a CPU by small C++ kernels that read K/V where it lies; needs a compiler on the machine."""

from rtk.plugin import Plugin, hookimpl


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="attention",
            name="native",
            summary="C++ kernels for a CPU, compiled by this machine's compiler",
            target="rtk_attention.native.backend:NativeAttention",
        )
    ]
