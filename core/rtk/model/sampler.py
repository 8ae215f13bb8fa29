"""From logits to token ids. The same logits, parameters and uniform draw give the same token, whatever the neighbours.

A row keeps its `top_k` most probable tokens after temperature, then the fewest of those that reach `top_p` of their
probability; of equals, lower ids stay. The draw then picks from the cumulative probability of what is kept, in the
order of ids.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from rtk.grammar.mask import apply_mask
from rtk.schedule.batch import SampleInputs, StepResult
from rtk.schedule.params import GREEDY_BELOW

HEAD = 512
"""Most probable tokens looked at for `top_p` before all are sorted; enough for most rows."""
NON_FINITE = "non-finite logits"


class Sampling:
    """Rows that were sampled: their ids at once on the device, for the host when it asks."""

    def __init__(self, ids: torch.Tensor, best: torch.Tensor) -> None:
        self.ids = ids
        """[n] int64; of rows that failed, any id that a token can have."""
        self._best = best
        self._copied: torch.cuda.Event | None = None
        if ids.is_cuda:  # begun here: begun in `result`, the copy would wait for steps that were launched since
            self._ids, self._best = (t.to("cpu", non_blocking=True) for t in (ids, best))
            self._copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(ids.device))
        else:
            self._ids = ids

    def result(self) -> StepResult:
        """The tokens of the rows, and the errors of those that have none."""
        if self._copied is not None:
            self._copied.synchronize()
        best = self._best.cpu().numpy()  # NaN where a row has one
        failed = np.isnan(best) | (best == -np.inf)
        return StepResult(
            tokens=tuple(() if bad else (i,) for i, bad in zip(self._ids.tolist(), failed.tolist(), strict=True)),
            errors=dict.fromkeys(np.flatnonzero(failed).tolist(), NON_FINITE),
        )


def sample(logits: torch.Tensor, inputs: SampleInputs, vocab_size: int) -> Sampling:
    """Sample one token for each row of `logits` [n, width >= vocab_size], float32.

    Leaves `logits` as they are, but for rows that have a mask: to those it is applied in place. Ids from `vocab_size`
    up are never produced, nor those that `inputs.banned` names. Greedy rows take the highest logit, of equals the
    lowest id. A row with a NaN, or with nothing but -inf, gets an error instead of a token; an
    infinite logit is taken. O(vocab) for each row, on the device for greedy rows, which the host does not wait for, and
    on the host for the others; rows with `top_p` on a flat distribution sort their vocabulary.
    """
    logits = logits[:, :vocab_size]
    if inputs.mask is not None:
        apply_mask(logits, inputs.mask.words, inputs.mask.rows)
    logits = _without_banned(logits, inputs.banned)
    ids, best = _first_maximum(logits), logits.amax(dim=-1)
    drawn = np.flatnonzero(inputs.temperature >= GREEDY_BELOW)
    if drawn.size:
        drawn = drawn[np.isfinite(best.cpu().numpy()[drawn])]
        where = torch.from_numpy(drawn).to(logits.device)
        found = [
            _draw(row, inputs.temperature[i], int(inputs.top_k[i]), inputs.top_p[i], inputs.uniform[i])
            for row, i in zip(logits[where].cpu().numpy(), drawn.tolist(), strict=True)
        ]
        ids[where] = torch.tensor(found, dtype=ids.dtype).to(ids.device)
    return Sampling(ids, best)


def _without_banned(logits: torch.Tensor, banned: dict[int, tuple[int, ...]]) -> torch.Tensor:
    if not any(banned.values()):
        return logits
    logits = logits.clone()
    for row, ids in banned.items():
        logits[row, [token for token in ids if token < logits.shape[1]]] = -torch.inf
    return logits


def _first_maximum(logits: torch.Tensor) -> torch.Tensor:
    """[n] lowest id of each row's highest logit. On a CPU numpy is ten times faster."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)


def _draw(
    logits: NDArray[np.float32], temperature: np.float32, top_k: int, top_p: np.float32, uniform: np.float64
) -> int:
    """One row whose highest logit is finite. Row by row, so that no result can depend on a neighbour."""
    ids = None
    if 0 < top_k < len(logits):
        ids = _highest(logits, top_k)
        logits = logits[ids]
    with np.errstate(over="ignore"):
        # The highest becomes 0: then no temperature overflows upwards, and the row does not vanish as a whole.
        weights = np.exp((logits - logits.max()) / temperature)
    if top_p < 1:
        nucleus = _highest(logits, _reaching(weights, top_p))
        ids, weights = (nucleus if ids is None else ids[nucleus]), weights[nucleus]
    cumulative = np.cumsum(weights, dtype=np.float64)
    # The first id whose cumulative weight exceeds the draw's share has a weight; the share of a draw below 1 rounds to
    # less than the whole, which is at least 1.
    found = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return found if ids is None else int(ids[found])


def _highest(values: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Ascending indices of the `count` highest values; of equals, the first. O(n)."""
    least = np.partition(values, len(values) - count)[len(values) - count]
    found = np.flatnonzero(values >= least)
    if len(found) > count:
        equal = np.flatnonzero(values[found] == least)
        found = np.delete(found, equal[count - len(found) :])
    return found


def _reaching(weights: NDArray[np.float32], share: np.float32) -> int:
    """How many of the greatest weights it takes to reach a share of all of them; at least one."""
    wanted = np.float64(share) * weights.sum(dtype=np.float64)
    for head in (min(HEAD, len(weights)), len(weights)):
        mass = np.cumsum(np.sort(np.partition(weights, -head)[-head:])[::-1], dtype=np.float64)
        if mass[-1] >= wanted:
            break
    return min(int(np.searchsorted(mass, wanted)) + 1, len(weights))
