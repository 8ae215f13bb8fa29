"""Log-probabilities of the model's own distribution: the log-softmax of its logits, on the device that has them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from rtk.model.bridge import Head
from rtk.schedule.batch import Scored
from rtk.schedule.messages import TokenLogprobs

AT_ONCE = 1 << 23
"""Logits that are looked at together, 32 MiB in float32; what is computed from them takes a few times as much."""


class OnHost:
    """Tensors on their way to the host, begun at once: begun later, the copy would wait for steps launched since."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._tensors = tensors
        self._copied: torch.cuda.Event | None = None
        if tensors and tensors[0].is_cuda:
            self._tensors = tuple(t.to("cpu", non_blocking=True) for t in tensors)
            self._copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(tensors[0].device))

    def get(self) -> tuple[torch.Tensor, ...]:
        """The tensors, once they are there."""
        if self._copied is not None:
            self._copied.synchronize()
        return tuple(t.cpu() for t in self._tensors)


class Told(NamedTuple):
    """Of m rows of logits."""

    chosen: torch.Tensor
    """[m] float32, the log-probabilities of one token each."""
    ids: torch.Tensor
    """[m, top] the most probable tokens, the best first, of equals the lowest id."""
    values: torch.Tensor
    """[m, top] float32, their log-probabilities."""


@torch.inference_mode()
def told(logits: torch.Tensor, tokens: torch.Tensor, top: int, vocab_size: int) -> Told:
    """Log-probabilities of `tokens` [m] under `logits` [m, width], float32, and of the `top` most probable tokens.

    All of the width counts, also what the tokenizer has no token for: so the model was trained, and so others compute
    it. Ids from `vocab_size` up are never among the most probable. O(m * width); the host waits for nothing.
    """
    total = logits.logsumexp(dim=-1, keepdim=True)
    chosen = logits.gather(1, tokens[:, None].to(logits.device)) - total
    top = min(top, vocab_size)
    if not top:
        nothing = chosen[:, :0]
        return Told(chosen[:, 0], nothing.long(), nothing)
    ids, values = _best(logits[:, :vocab_size], top)
    return Told(chosen[:, 0], ids, values - total)


def _best(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[m, count] ids and values of the highest of each row, the best first, of equals the lowest id.

    `topk` takes any of several equals: what is above the least of its values it has found, and of those that equal the
    least, the lowest ids are looked for.
    """
    values, ids = logits.topk(count, dim=-1)
    least = values[:, -1:]
    above = (values > least).sum(dim=-1, keepdim=True)
    ids, order = ids.sort(dim=-1)
    values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    width = logits.shape[1]
    numbers = torch.arange(width, dtype=torch.int32, device=logits.device)
    equal = width - torch.where(logits == least, width - numbers, 1).topk(count, dim=-1).values.long()
    place = torch.arange(count, device=logits.device).expand_as(ids)
    equals = equal.gather(1, (place - above).clamp_(min=0))
    return torch.where(place < above, ids.gather(1, order), equals), values


def joined(parts: Sequence[Told]) -> Told:
    """Those of the rows of one after the other; all must have as many tokens."""
    return parts[0] if len(parts) == 1 else Told(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def slices(rows: int, width: int) -> Iterable[slice]:
    """Rows of logits that are looked at together."""
    step = max(1, AT_ONCE // width)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def scores(head: Head, scored: Scored, width: int, vocab_size: int) -> Told:
    """Of the tokens that follow some of a forward, whose logits, `width` each, are made piece by piece."""
    following = torch.from_numpy(scored.following.astype(np.int64))
    where = torch.arange(scored.first, scored.first + len(following))
    parts = slices(len(where), width)
    return joined([told(head(where[part]), following[part], scored.top, vocab_size) for part in parts])


def entries(tokens: Iterable[int], found: Told, tops: Iterable[int]) -> list[TokenLogprobs]:
    """The same as messages; of each row so many of the most probable tokens. `found` is on the host."""
    rows = zip(tokens, found.chosen.tolist(), found.ids.tolist(), found.values.tolist(), tops, strict=True)
    return [
        TokenLogprobs(token, chosen, tuple(zip(ids[:top], values[:top], strict=True)))
        for token, chosen, ids, values, top in rows
    ]
