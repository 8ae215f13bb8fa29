"""Decoding by `flash_mla_with_kvcache`, of the package sgl-flash-mla or as older packages have it."""

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from rtk.plugin import Capabilities, LayerCall, Workspace
from rtk_attention.latent import Group, LatentDecoding, library
from rtk_attention.latent_options import LatentOptions


@dataclass(slots=True)
class Schedule:
    """How the kernel cuts the work of a group: the first layer makes it, and the others use it again."""

    metadata: Any = None
    splits: torch.Tensor | None = None


class FlashMLA(LatentDecoding):
    """On Hopper GPUs only: the kernel for dense latents was made for no other."""

    name = "flashmla"
    latent = {576: 512}  # noqa: RUF012 - a constant of the class
    capabilities = Capabilities(
        devices=frozenset({"cuda"}),
        dtypes=frozenset({"bfloat16", "float16"}),
        page_sizes=frozenset({64}),
        kinds=frozenset({"mla"}),
        compute_capabilities=frozenset({9}),
        preference=30,
    )

    def __init__(self, options: LatentOptions) -> None:
        """Raises `ImportError` where FlashMLA is not installed, or cannot be loaded."""
        package = library("flash_mla", "sgl_kernel.flash_mla", extra="flashmla")
        self._schedule = package.get_mla_metadata
        self._attend = package.flash_mla_with_kvcache
        self._made_by_the_kernel = "cache_seqlens" not in inspect.signature(self._schedule).parameters
        has_newer = "use_legacy" in inspect.signature(self._attend).parameters
        self._kernel: dict[str, Any] = {"use_legacy": True} if has_newer else {}
        super().__init__(options)

    def prepare(self, group: Group, workspace: Workspace) -> Schedule:
        return Schedule(self._schedule()[0]) if self._made_by_the_kernel else Schedule()

    def decode(
        self, q: torch.Tensor, latents: torch.Tensor, call: LayerCall, group: Group, prepared: Schedule
    ) -> torch.Tensor:
        if prepared.metadata is None:
            heads = latents.shape[2]
            queries = q.shape[1] * q.shape[2] // heads
            prepared.metadata, prepared.splits = self._schedule(group.lens, queries, heads)
        out: torch.Tensor = self._attend(
            q,
            latents,
            group.pages,
            group.lens,
            self.latent[q.shape[3]],
            prepared.metadata,
            prepared.splits,
            softmax_scale=call.scaling,
            causal=True,
            **self._kernel,
        )[0]
        return out
