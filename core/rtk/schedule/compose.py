"""From a batch of requests to the plain data of a step."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rtk.cache.req_table import ReqTable
from rtk.plugin.attention import SharedRun
from rtk.schedule.batch import SAMPLED_LAST, Bias, Penalties, Row, SampleInputs, Scored, StepPlan, TableWrite
from rtk.schedule.draws import uniform
from rtk.schedule.params import SamplingParams
from rtk.schedule.request import Request, Status

Int32 = np.int32
LEAST_PENALTY = np.finfo(np.float32).tiny
"""Of repetition, in float32: 0 would make NaN of a logit of 0."""


def compose(
    step: int,
    batch: list[Request],
    table: ReqTable,
    writes: list[TableWrite],
    shared: tuple[SharedRun, ...] = (),
) -> StepPlan:
    """The step that computes every request's positions from `launched_len` to `planned_len`. O(T)."""
    rows = tuple(_row(request) for request in batch)
    return StepPlan(
        step=step,
        rows=rows,
        tokens=np.concatenate([_tokens(r, row) for r, row in zip(batch, rows, strict=True)]),
        slots=np.concatenate([table.slots(row.req_row, row.start, row.start + row.q_len) for row in rows]),
        writes=tuple(writes),
        scored=tuple(_scored(batch, rows)),
        shared=shared,
    )


def _row(request: Request) -> Row:
    samples = max(0, request.planned_len - request.sampled_length + 1) if request.left > 0 else 0
    return Row(request.row, request.launched_len, request.planned_len - request.launched_len, samples)


def _tokens(request: Request, row: Row) -> np.ndarray:
    if row.start == request.length:  # the token that the step in flight samples
        return np.array([SAMPLED_LAST], dtype=Int32)
    guesses = max(0, row.samples - 1)
    known = np.frombuffer(request.tokens, dtype="<i4", count=row.q_len - guesses, offset=row.start * 4).astype(Int32)
    if not guesses:
        return known
    assert request.constraint is not None, "tokens are guessed under a grammar only"
    return np.concatenate([known, np.array(request.constraint.drafts[:guesses], dtype=Int32)])


def _scored(batch: list[Request], rows: Sequence[Row]) -> Iterator[Scored]:
    """What is scored of prompts, row by row."""
    offset = 0
    for number, (request, row) in enumerate(zip(batch, rows, strict=True)):
        if request.scores is not None and (scored := request.scores.of(number, row, offset)) is not None:
            yield scored
        offset += row.q_len


def sample_inputs(samples: list[tuple[Request, int]]) -> SampleInputs:
    """How these requests sample their next tokens: the number of each sample, and whose it is. O(n).

    Without what depends on the tokens in flight: masks, and `penalties`.
    """
    params = [r.params for r, _ in samples]
    return SampleInputs(
        temperature=np.array([p.temperature for p in params], dtype=np.float32),
        top_p=np.array([p.top_p for p in params], dtype=np.float32),
        top_k=np.array([max(p.top_k, 0) for p in params], dtype=Int32),
        uniform=np.array([0.0 if r.params.greedy else uniform(r.seed, at) for r, at in samples]),
        banned={i: tuple(r.stop_token_ids) for i, (r, at) in enumerate(samples) if at < r.params.min_new_tokens},
        **(_rarer(params) if any(r.wants_more for r, _ in samples) else {}),
    )


def _rarer(params: list[SamplingParams]) -> dict[str, Any]:
    """What few requests ask for."""
    return {
        "min_p": np.array([p.min_p for p in params], dtype=np.float32),
        "bias": _bias(params) if any(p.logit_bias for p in params) else None,
        "logprobs": {i: p.logprobs for i, p in enumerate(params) if p.logprobs is not None},
    }


def _bias(params: list[SamplingParams]) -> Bias:
    entries = [(i, token, value) for i, p in enumerate(params) for token, value in p.logit_bias]
    rows, tokens, values = zip(*entries, strict=True)
    return Bias(np.array(rows, dtype=Int32), np.array(tokens, dtype=Int32), np.array(values, dtype=np.float32))


def penalties(batch: Iterable[Request], rows: Sequence[Row], tokens: NDArray[Int32]) -> Penalties | None:
    """Of the samples of a step whose requests have some and go on; `tokens` are those that it computes.

    All that the step before sampled must have been taken in. O(rows + distinct tokens of those texts).
    """
    samples: list[int] = []
    held: list[tuple[NDArray[Int32], NDArray[Int32]]] = []
    params: list[SamplingParams] = []
    at = stop = 0
    for request, row in zip(batch, rows, strict=True):
        stop += row.q_len
        if row.samples and request.counts is not None and request.status is Status.RUNNING:
            assert request.sampled == len(request.output) + row.samples, "what it has sampled is not known yet"
            guesses = tokens[stop - row.samples + 1 : stop].tolist()
            for ahead in range(row.samples):
                samples.append(at + ahead)
                held.append(request.counts.with_guesses(guesses[:ahead]))
                params.append(request.params)
        at += row.samples
    if not samples:
        return None
    return Penalties(
        rows=np.array(samples, dtype=Int32),
        held=np.array([len(own) for own, _ in held], dtype=Int32),
        tokens=np.concatenate([own for own, _ in held]),
        counts=np.concatenate([counts for _, counts in held]),
        repetition=np.array([max(p.repetition_penalty, LEAST_PENALTY) for p in params], dtype=np.float32),
        presence=np.array([p.presence_penalty for p in params], dtype=np.float32),
        frequency=np.array([p.frequency_penalty for p in params], dtype=np.float32),
    )
