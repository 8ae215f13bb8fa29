"""Draws a token for each row of logits by torch operations alone: on a device, where the host waits for none of them.

The rules are those of `rtk.model.sampler`. What is summed are integers, so that neither the order of a device's sums
nor a row's neighbours make a difference. What is less than `1 / ONE` times as probable as the most probable token is
not drawn;
otherwise answers differ from the host's only where a draw or a threshold is at a border, but for float32's rounding.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from rtk.model.logprobs import slices
from rtk.model.transfer import on_device
from rtk.schedule.batch import SampleInputs

ONE = 2**43
"""The highest weight of a row as an integer. A million of them have a sum in int64."""


def draw(logits: torch.Tensor, inputs: SampleInputs, which: NDArray[np.intp]) -> torch.Tensor:
    """[m] ids of the samples `which` [m] of `inputs`; `logits` [n, width] are those of all.

    Any id where a row's highest is not finite. O(width) a row, and O(width log width) where a row has a `top_p`.
    """
    width = logits.shape[1]
    top_k, top_p = inputs.top_k[which], inputs.top_p[which]
    kept = np.where((top_k > 0) & (top_k < width), top_k, 0)
    min_p = np.zeros_like(top_p) if inputs.min_p is None else inputs.min_p[which]
    table = np.stack([which, inputs.temperature[which], kept, top_p, min_p, inputs.uniform[which]])
    columns = on_device(table.astype(np.float64), logits.device)
    most, nucleus = int(kept.max(initial=0)), bool((top_p < 1).any())
    parts = (columns[:, part, None] for part in slices(len(which), width))
    return torch.cat([_draw(logits[own[0, :, 0].long()], own[1:], most, nucleus=nucleus) for own in parts])


def _draw(logits: torch.Tensor, columns: torch.Tensor, most: int, *, nucleus: bool) -> torch.Tensor:
    """`columns` are [5, rows, 1]; the second is a row's `top_k` or 0, and `most` the greatest of it."""
    temperature, top_k, top_p, min_p, uniform = columns
    last = logits.shape[1] - 1
    # The highest becomes 0: then no temperature overflows upwards, and the row does not vanish as a whole.
    weights = ((logits - logits.amax(dim=-1, keepdim=True)) / temperature.float()).exp_()
    if most:
        count = top_k.long()
        least = logits.topk(most).values.gather(1, (count - 1).clamp_(min=0))
        weights = weights.where((count == 0) | _highest(logits, least, count), 0)
    if nucleus:
        ordered = weights.sort(dim=-1, descending=True).values
        mass = _integers(ordered).cumsum(dim=-1)
        wanted = (top_p * mass[:, -1:]).ceil().long()
        place = torch.searchsorted(mass, wanted).clamp_(max=last)
        weights = weights.where((top_p >= 1) | _highest(weights, ordered.gather(1, place), place + 1), 0)
    weights = weights.where(weights >= min_p.float(), 0)
    cumulative = _integers(weights).cumsum(dim=-1)
    total = cumulative[:, -1:]
    # An id has a weight where the cumulative one exceeds the draw's share for the first time.
    share = (uniform * total).long().minimum(total - 1)
    return torch.searchsorted(cumulative, share, right=True)[:, 0].clamp_(max=last)


def _integers(weights: torch.Tensor) -> torch.Tensor:
    return weights.double().mul_(ONE).long()


def _highest(values: torch.Tensor, least: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Where the `count` highest values of each row are, the lowest of which is `least`; of equals, the first."""
    above, equal = values > least, values == least
    return above | (equal & (equal.cumsum(dim=-1) <= count - above.sum(dim=-1, keepdim=True)))
