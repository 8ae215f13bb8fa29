"""Latent attention by TensorRT-LLM's decoding, which FlashInfer brings; another plugin computes longer rows."""

from rtk.plugin import Plugin, hookimpl
from rtk_attention.latent_options import LatentOptions


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="attention",
            name="trtllm-mla",
            summary="TensorRT-LLM's decoding for MLA models, on Blackwell GPUs, in pages of 32 or 64; not run on a GPU",
            target="rtk_attention.trtllm_mla.backend:TrtllmMLA",
            options=LatentOptions,
        )
    ]
