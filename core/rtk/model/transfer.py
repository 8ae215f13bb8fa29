"""From the host to a device that computes by itself: nobody waits."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def on_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A copy there; on a CPU perhaps the array itself. From pinned memory, which torch uses again once it is read."""
    host = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
