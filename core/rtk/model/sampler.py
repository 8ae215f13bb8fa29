"""From logits to token ids. The same logits, parameters and uniform draw give the same token, whatever the neighbours.

Logits are changed in this order:

1. `repetition_penalty`, for tokens of prompt or output: divides what is above 0, multiplies what is not;
2. `frequency_penalty` for each time that a token is in the output, and `presence_penalty` once, are taken off;
3. `logit_bias` is added;
4. what a grammar does not allow, and end tokens before the minimum length, become -inf.

A greedy row takes the highest, of equals the lowest id. Any other row divides by its temperature, and keeps its `top_k`
most probable tokens, then the fewest of those that reach `top_p` of their probability, then those that are at least
`min_p` times as probable as the most probable one; of equals, lower ids stay. The draw then picks from the cumulative
probability of what is kept, in the order of ids. Log-probabilities are those of the logits before all this.
"""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from rtk.grammar.mask import apply_mask
from rtk.model.draws import draw
from rtk.model.logprobs import OnHost, Told, entries, joined, slices, told
from rtk.model.transfer import on_device
from rtk.schedule.batch import Bias, Penalties, SampleInputs, StepResult
from rtk.schedule.messages import TokenLogprobs
from rtk.schedule.params import GREEDY_BELOW

HEAD = 512
"""Most probable tokens looked at for `top_p` before all are sorted; enough for most rows."""
NON_FINITE = "non-finite logits"
ALONE = frozenset({"cuda"})
"""Types of devices on which rows are drawn without the host."""


class Sampling:
    """Rows that were sampled: their ids at once on the device, for the host when it asks."""

    def __init__(self, ids: torch.Tensor, best: torch.Tensor, tops: dict[int, int], found: Told | None) -> None:
        self.ids = ids
        """[n] int64; of rows that failed, any id that a token can have."""
        self._tops = tops
        self._sampled = OnHost(ids, best)
        self._told = None if found is None else OnHost(*found)

    def result(self) -> StepResult:
        """The tokens of the rows, and the errors of those that have none."""
        ids, best = (t.numpy() for t in self._sampled.get())
        failed = np.isnan(best) | (best == -np.inf)  # NaN where a row has one
        tokens = ids.tolist()
        return StepResult(
            tokens=tuple(() if bad else (i,) for i, bad in zip(tokens, failed.tolist(), strict=True)),
            errors=dict.fromkeys(np.flatnonzero(failed).tolist(), NON_FINITE),
            logprobs={} if self._told is None else self._logprobs(tokens, Told(*self._told.get())),
        )

    def _logprobs(self, tokens: list[int], found: Told) -> dict[int, tuple[TokenLogprobs, ...]]:
        made = entries([tokens[row] for row in self._tops], found, self._tops.values())
        return {row: (entry,) for row, entry in zip(self._tops, made, strict=True)}


@torch.inference_mode()
def sample(logits: torch.Tensor, inputs: SampleInputs, vocab_size: int) -> Sampling:
    """Sample one token for each row of `logits` [n, width >= vocab_size], float32.

    Leaves `logits` as they are, but for rows that have penalties, a bias or a mask: to those these are applied in
    place. Ids from `vocab_size` up are never produced, nor those that `inputs.banned` names. A row with a NaN, or with
    nothing but -inf, gets an error instead of a token; an infinite logit is taken. O(vocab) for each row, on the device
    for greedy rows, which the host does not wait for, and on the host for the others; rows with `top_p` on a flat
    distribution sort their vocabulary. On a CUDA device the host waits for no row (see `rtk.model.draws`).
    """
    raw = logits[_ids(inputs.logprobs, logits.device)] if inputs.logprobs else None
    logits = logits[:, :vocab_size]
    if inputs.penalties is not None:
        _penalise(logits, inputs.penalties)
    if inputs.bias is not None:
        _bias(logits, inputs.bias)
    if inputs.mask is not None:
        apply_mask(logits, inputs.mask.words, inputs.mask.rows)
    logits = _without_banned(logits, inputs.banned)
    ids = _first_maximum(logits)
    best = logits.gather(1, ids[:, None])[:, 0]
    drawn = np.flatnonzero(inputs.temperature >= GREEDY_BELOW)
    if drawn.size and logits.device.type in ALONE:
        where = on_device(drawn, logits.device)
        ids[where] = draw(logits, inputs, drawn).where(best[where].isfinite(), ids[where])
    elif drawn.size:
        drawn = drawn[np.isfinite(best.cpu().numpy()[drawn])]
        where = torch.from_numpy(drawn).to(logits.device)
        min_p = np.zeros_like(inputs.top_p) if inputs.min_p is None else inputs.min_p
        found = [
            _draw(row, inputs.temperature[i], int(inputs.top_k[i]), inputs.top_p[i], min_p[i], inputs.uniform[i])
            for row, i in zip(logits[where].cpu().numpy(), drawn.tolist(), strict=True)
        ]
        ids[where] = torch.tensor(found, dtype=ids.dtype).to(ids.device)
    return Sampling(ids, best, inputs.logprobs, None if raw is None else _told(raw, ids, inputs.logprobs, vocab_size))


def _told(raw: torch.Tensor, ids: torch.Tensor, tops: dict[int, int], vocab_size: int) -> Told:
    """Of the rows that ask, whose logits `raw` are."""
    chosen, top = ids[_ids(tops, ids.device)], max(tops.values())
    return joined([told(raw[part], chosen[part], top, vocab_size) for part in slices(*raw.shape)])


def _penalise(logits: torch.Tensor, given: Penalties) -> None:
    """In place; each token is there once for each row."""
    entry = np.repeat(np.arange(len(given.rows)), given.held)
    known = given.tokens < logits.shape[1]
    entry, tokens, counts = entry[known], given.tokens[known].astype(np.int64), given.counts[known]
    off = given.frequency[entry] * counts + given.presence[entry] * (counts > 0)
    columns = (given.rows[entry].astype(np.int64), tokens, given.repetition[entry], off.astype(np.float32))
    row, token, repetition, less = (on_device(column, logits.device) for column in columns)
    was = logits[row, token]
    logits[row, token] = torch.where(was > 0, was / repetition, was * repetition) - less


def _bias(logits: torch.Tensor, given: Bias) -> None:
    """In place; each token is there once for each row."""
    known = given.tokens < logits.shape[1]
    columns = (given.rows[known].astype(np.int64), given.tokens[known].astype(np.int64), given.values[known])
    row, token, more = (on_device(column, logits.device) for column in columns)
    logits[row, token] += more


def _without_banned(logits: torch.Tensor, banned: dict[int, tuple[int, ...]]) -> torch.Tensor:
    if not any(banned.values()):
        return logits
    logits, width = logits.clone(), logits.shape[1]
    entries = [(row, token) for row, own in banned.items() for token in own if token < width]
    rows, tokens = on_device(np.array(entries, np.int64).reshape(-1, 2).T, logits.device)
    # The value itself lies on the host, which then would have to wait for the copy.
    logits.index_put_((rows, tokens), logits.new_full((), -torch.inf))
    return logits


def _ids(numbers: Iterable[int], device: torch.device) -> torch.Tensor:
    return on_device(np.fromiter(numbers, np.int64), device)


def _first_maximum(logits: torch.Tensor) -> torch.Tensor:
    """[n] lowest id of each row's highest logit, or of a NaN where it has one. On a CPU numpy is ten times faster."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)


def _draw(
    logits: NDArray[np.float32],
    temperature: np.float32,
    top_k: int,
    top_p: np.float32,
    min_p: np.float32,
    uniform: np.float64,
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
    if min_p > 0:
        weights = np.where(weights >= min_p, weights, 0)  # the highest is 1
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
