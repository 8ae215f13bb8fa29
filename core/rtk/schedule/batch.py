"""One step as data: what the scheduler decided (`StepPlan`), how to sample (`SampleInputs`), what came back.

All of it is plain and serialisable, so that one scheduler can later drive several workers.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rtk.plugin.attention import SharedRun
from rtk.schedule.messages import TokenLogprobs

SAMPLED_LAST = -1
"""In `StepPlan.tokens`: the token that the step before sampled for this row's request, which the host has not seen yet.

Only the one token of a decode row may be that. Where the step before failed, or sampled nothing for that request row,
any token may be computed in its place: the host throws the row's result away.
"""


class Row(NamedTuple):
    """One request's share of a step: positions `start .. start + q_len - 1` of request row `req_row` are computed.

    `samples` tokens are sampled from the row's last positions: 0 for a prefill that samples nothing, 1 otherwise; more
    where the last `samples - 1` tokens are guesses, which what is sampled before each of them bears out or not.
    """

    req_row: int
    start: int
    q_len: int
    samples: int


class TableWrite(NamedTuple):
    """Slots of positions `start ..` of a request row that this step does not compute: a cache hit, or a rewrite."""

    req_row: int
    start: int
    slots: NDArray[np.int32]


class Scored(NamedTuple):
    """Positions of one row after which it is told how probable the model finds the tokens that follow."""

    row: int
    """Of the plan's rows."""
    first: int
    """Where the positions begin among the plan's tokens."""
    following: NDArray[np.int32]
    """What follows each of them: those of a prompt, which the next piece may begin with."""
    top: int
    """Most probable tokens to name there."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A flattened batch: T tokens of the rows, one row after the other. Writes are applied before the step."""

    step: int
    rows: tuple[Row, ...]
    tokens: NDArray[np.int32]
    """[T] token ids to compute, or `SAMPLED_LAST`."""
    slots: NDArray[np.int32]
    """[T] where the K/V of each goes; also the table entries of the computed positions."""
    writes: tuple[TableWrite, ...] = ()
    scored: tuple[Scored, ...] = ()
    shared: tuple[SharedRun, ...] = ()
    """Of the cache's tree: which rows have which positions in the same slots, where that is worth telling."""


class Mask(NamedTuple):
    """What some samples may be; the others may be any token."""

    rows: NDArray[np.int32]
    """[m] which samples these are."""
    words: NDArray[np.int32]
    """[m, words] bit i of word w is token 32 * w + i, and set where that is allowed."""


class Penalties(NamedTuple):
    """What some samples' texts hold already, and what that costs it."""

    rows: NDArray[np.int32]
    """[m] which samples these are."""
    held: NDArray[np.int32]
    """[m] distinct tokens of each text."""
    tokens: NDArray[np.int32]
    """[sum of held] these tokens, those of one sample after the other."""
    counts: NDArray[np.int32]
    """[sum of held] how often each is in the output; 0: it counts as there, as tokens of the prompt do."""
    repetition: NDArray[np.float32]
    """[m], above 0."""
    presence: NDArray[np.float32]
    frequency: NDArray[np.float32]


class Bias(NamedTuple):
    """What is added to logits, one by one."""

    rows: NDArray[np.int32]
    """[k] of which samples."""
    tokens: NDArray[np.int32]
    values: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SampleInputs:
    """How a step is sampled; arrays of shape [n], one after the other for each sample of each row."""

    temperature: NDArray[np.float32]
    """Below `GREEDY_BELOW`: greedy."""
    top_p: NDArray[np.float32]
    top_k: NDArray[np.int32]
    """0 keeps all."""
    uniform: NDArray[np.float64]
    """One draw from [0, 1) for each sample: the only randomness there is."""
    banned: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Token ids that sample i must not be (end tokens before the minimum length)."""
    mask: Mask | None = None
    """Of the samples whose answers have a grammar, if there are any."""
    min_p: NDArray[np.float32] | None = None
    """None: 0 for all."""
    penalties: Penalties | None = None
    bias: Bias | None = None
    logprobs: dict[int, int] = field(default_factory=dict)
    """The samples that it is told of how probable they were, and how many of the most probable tokens are named."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step produced, for the rows that sample, in their order."""

    tokens: tuple[tuple[int, ...], ...]
    """Sampled ids; of several up to the first that failed, so none for a row that failed."""
    errors: dict[int, str] = field(default_factory=dict)
    """Why sampling row i has no token."""
    logprobs: dict[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    """For each token of sampling row i, where they were asked for."""
    scores: tuple[tuple[TokenLogprobs, ...], ...] = ()
    """For each of the plan's `scored`."""


def by_row(samples: StepResult, rows: Iterable[Row]) -> StepResult:
    """The result of the rows of a step, from one that has a row for each of their samples. O(samples)."""
    counts = [row.samples for row in rows if row.samples]
    if len(counts) == len(samples.tokens):
        return samples
    tokens: list[tuple[int, ...]] = []
    errors: dict[int, str] = {}
    logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
    at = 0
    for i, count in enumerate(counts):
        tokens.append(tuple(chain(*takewhile(bool, samples.tokens[at : at + count]))))
        if not tokens[-1]:
            errors[i] = samples.errors[at]
        if at in samples.logprobs:
            logprobs[i] = tuple(chain(*(samples.logprobs[j] for j in range(at, at + len(tokens[-1])))))
        at += count
    return StepResult(tuple(tokens), errors, logprobs)
