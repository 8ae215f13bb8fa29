"""Paged attention by Triton kernels of our own: extend, and decode with the keys of long rows split."""

from pydantic import Field

from rtk.plugin import Options, Plugin, hookimpl


class TritonOptions(Options):
    max_kv_splits: int = Field(
        32, ge=1, le=1024, description="pieces that the keys of one decoding row are split into at most"
    )


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="attention",
            name="triton",
            summary="Triton kernels for CUDA devices; compiled and interpreted in tests, not yet run on a GPU",
            target="rtk_attention.triton.backend:TritonAttention",
            options=TritonOptions,
        )
    ]
