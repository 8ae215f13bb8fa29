"""Decoding by `trtllm_batch_decode_with_kv_cache_mla` of FlashInfer."""

import torch

from rtk.errors import PluginError
from rtk.plugin import Capabilities, KVLayout, KVShape, LayerCall, Workspace
from rtk_attention.latent import Group, LatentDecoding, library
from rtk_attention.latent_options import LatentOptions

WORKSPACE = 128 * 2**20
"""Bytes that the kernel may use between its launches."""
NOPE = 128
"""Dimensions of a head without position before absorption: DeepSeek's. It is asked for, and makes no difference."""


class TrtllmMLA(LatentDecoding):
    """On Blackwell GPUs of data centres only. Kernels are fetched by FlashInfer when they are first needed."""

    name = "trtllm-mla"
    latent = {576: 512, 320: 256}  # noqa: RUF012 - a constant of the class
    padding = 128
    capabilities = Capabilities(
        devices=frozenset({"cuda"}),
        dtypes=frozenset({"bfloat16"}),
        page_sizes=frozenset({32, 64}),
        kinds=frozenset({"mla"}),
        compute_capabilities=frozenset({10}),
        preference=-1,  # what it runs is fetched from elsewhere: not unless somebody asks for it
    )

    def __init__(self, options: LatentOptions) -> None:
        """Raises `ImportError` where FlashInfer is not installed, or cannot be loaded."""
        package = library("flashinfer.mla", extra="flashinfer")
        self._attend = package.trtllm_batch_decode_with_kv_cache_mla
        self._zeroed: Workspace | None = None
        super().__init__(options)

    def layout(self, shape: KVShape, page_size: int, kv_dtype: str) -> KVLayout:
        if 64 < shape.q_heads < 128:
            raise PluginError(
                f"attention plugin {self.name!r} takes up to 64 query heads, or 128 and more, and the model has "
                f"{shape.q_heads}: TensorRT-LLM has no kernel for it; use attention.backend = torch"
            )
        return super().layout(shape, page_size, kv_dtype)

    def prepare(self, group: Group, workspace: Workspace) -> torch.Tensor:
        scratch = workspace.take("trtllm_mla", (WORKSPACE,), torch.uint8)
        if workspace is not self._zeroed:  # the kernel finds zeros at first, and leaves them as it needs them
            scratch.zero_()
            self._zeroed = workspace
        return scratch

    def decode(
        self, q: torch.Tensor, latents: torch.Tensor, call: LayerCall, group: Group, prepared: torch.Tensor
    ) -> torch.Tensor:
        value = self.latent[q.shape[3]]
        out: torch.Tensor = self._attend(
            q.contiguous(),
            latents.squeeze(2),
            prepared,
            NOPE,
            value,
            q.shape[3] - value,
            group.pages,
            group.lens,
            group.longest,
            bmm1_scale=call.scaling,
            backend="trtllm-gen",
        )
        return out
