"""Latent attention by FlashMLA: its kernel decodes over pages of 64, and another plugin computes longer rows."""

from rtk.plugin import Plugin, hookimpl
from rtk_attention.latent_options import LatentOptions


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="attention",
            name="flashmla",
            summary="FlashMLA's decoding for MLA models, on Hopper GPUs, in pages of 64; not run on a GPU",
            target="rtk_attention.flashmla.backend:FlashMLA",
            options=LatentOptions,
        )
    ]
