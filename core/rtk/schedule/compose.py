"""From a batch of requests to the plain data of a step."""

import numpy as np

from rtk.cache.req_table import ReqTable
from rtk.schedule.batch import SAMPLED_LAST, Row, SampleInputs, StepPlan, TableWrite
from rtk.schedule.draws import uniform
from rtk.schedule.request import Request

Int32 = np.int32


def compose(step: int, batch: list[Request], table: ReqTable, writes: list[TableWrite]) -> StepPlan:
    """The step that computes every request's positions from `launched_len` to `planned_len`. O(T)."""
    rows = tuple(_row(request) for request in batch)
    return StepPlan(
        step=step,
        rows=rows,
        tokens=np.concatenate([_tokens(r, row) for r, row in zip(batch, rows, strict=True)]),
        slots=np.concatenate([table.slots(row.req_row, row.start, row.start + row.q_len) for row in rows]),
        writes=tuple(writes),
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


def sample_inputs(samples: list[tuple[Request, int]]) -> SampleInputs:
    """How these requests sample their next tokens: the number of each sample, and whose it is. O(n)."""
    params = [r.params for r, _ in samples]
    return SampleInputs(
        temperature=np.array([p.temperature for p in params], dtype=np.float32),
        top_p=np.array([p.top_p for p in params], dtype=np.float32),
        top_k=np.array([max(p.top_k, 0) for p in params], dtype=Int32),
        uniform=np.array([0.0 if r.params.greedy else uniform(r.seed, at) for r, at in samples]),
        banned={i: tuple(r.stop_token_ids) for i, (r, at) in enumerate(samples) if at < r.params.min_new_tokens},
    )
