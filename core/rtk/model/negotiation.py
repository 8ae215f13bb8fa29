"""What model, device and page size ask of an attention backend, compared with what it declares."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from rtk.plugin import Capabilities


class Needs(Protocol):
    """What is known of a model's needs, before or after it ran."""

    @property
    def features(self) -> frozenset[str]:
        """Of `rtk.plugin.attention.FEATURES`."""

    @property
    def dtype(self) -> str | None:
        """Type of K and V; None where it is not known yet."""

    @property
    def mla(self) -> bool | None:
        """Whether it is served as `KVShape.mla`; None where it is not known yet."""


@dataclass(frozen=True, slots=True)
class Unread:
    """The needs of a model of which nothing was read yet: what is configured."""

    dtype: str | None
    features: frozenset[str] = frozenset()
    mla: bool | None = None


def page_size(declared: Capabilities, wanted: int | None) -> int:
    """Tokens in a page: as wanted, else 1, or the smallest that the backend takes.

    The smaller pages are, the more of two prompts that begin alike is shared, and the less is lost at their ends.
    """
    if wanted is not None:
        return wanted
    return 1 if declared.page_sizes is None else min(declared.page_sizes)


def conflicts(
    declared: Capabilities, needs: Needs | None, device: torch.device, wanted: int | None, *, graphs: bool = False
) -> list[str]:
    """Everything that the model, the device or the configuration ask of a backend in vain.

    `needs` are the model's, None where nothing is known of it yet; `wanted` is the page size, None: the backend's own;
    `graphs` is whether it must be possible to capture steps.
    """
    found = []
    if device.type not in declared.devices:
        found.append(f"device {device.type} (it runs on {_listed(declared.devices)})")
    elif declared.compute_capabilities is not None:
        major = compute_capability(device)
        if major not in declared.compute_capabilities:
            shown = "without a compute capability" if major is None else f"of compute capability {major}"
            found.append(f"device {device} {shown} (it has kernels for {_numbers(declared.compute_capabilities)})")
    if needs and needs.dtype is not None and needs.dtype not in declared.dtypes:
        found.append(f"dtype {needs.dtype} (it computes {_listed(declared.dtypes)})")
    if declared.page_sizes is not None and wanted is not None and wanted not in declared.page_sizes:
        found.append(f"cache.page_size = {wanted} (it takes {_numbers(declared.page_sizes)})")
    if graphs and device.type != "cuda":
        found.append(f"model.cuda_graphs = true (device {device.type} has none)")
    elif graphs and not declared.graphs:
        found.append("model.cuda_graphs = true (it cannot be captured)")
    if needs and needs.mla is not None:
        kind = "mla" if needs.mla else "mha"
        if kind not in declared.kinds:
            found.append(f"the model's {kind} attention (it computes {_listed(declared.kinds)})")
    if needs and needs.features - declared.features:
        found.append(f"the model's {_listed(needs.features - declared.features)}")
    return found


def compute_capability(device: torch.device) -> int | None:
    """The major CUDA compute capability of a device; None: it has none."""
    if device.type != "cuda" or torch.version.hip is not None:  # AMD's numbers mean something else
        return None
    return torch.cuda.get_device_capability(device)[0]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers))) or "nothing"
