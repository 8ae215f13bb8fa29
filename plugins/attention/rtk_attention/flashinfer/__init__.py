"""Attention by FlashInfer's kernels: paged prefill and decode, prefixes read once for all their rows, and latents."""

from typing import Literal

from pydantic import Field

from rtk.plugin import Options, Plugin, hookimpl


class FlashInferOptions(Options):
    kernels: Literal["auto", "fa2", "fa3"] = Field(
        "auto", description="kernels of FlashInfer: fa3 on compute capability 9 and fa2 elsewhere, or always the same"
    )


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="attention",
            name="flashinfer",
            summary="FlashInfer's kernels for CUDA devices; tested with a stand-in, not yet run on a GPU",
            target="rtk_attention.flashinfer.backend:FlashInferAttention",
            options=FlashInferOptions,
        )
    ]
