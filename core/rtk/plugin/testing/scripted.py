"""A scripted executor: the model is a function of the token history, and the KV pool holds token ids.

Because every history is read back through the slot table, a wrong slot anywhere in the books gives another history,
hence another answer: scheduler and cache are tested without a model, and exactly.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rtk.plugin.grammar import WORD, read_row
from rtk.schedule.batch import (
    SAMPLED_LAST,
    Bias,
    Mask,
    Penalties,
    Row,
    SampleInputs,
    Scored,
    StepPlan,
    StepResult,
    by_row,
)
from rtk.schedule.messages import TokenLogprobs

Answer = int | NDArray[np.float32]
Script = Callable[[list[int]], Answer]
"""From all tokens up to and including the last computed one to the next: a token id, or logits to sample from.

Where a mask does not allow the token id, the lowest that it allows is taken. The log-probability of the token id is 0,
and it alone is named as most probable; that of others is -inf.
"""

_UNWRITTEN = -1


class ScriptedExecutor:
    """Computes steps by script. `history` and the pool are there for tests to look at."""

    def __init__(
        self,
        script: Script,
        *,
        slots: int,
        page_size: int,
        max_running: int,
        context_length: int,
        lazy: bool = False,
    ) -> None:
        """`lazy`: a step is computed when its result is asked for, or when the next but one is launched.

        Else it is computed at launch. Nothing a scheduler does may depend on which.
        """
        self._script = script
        self._lazy = lazy
        self.pool = np.full(slots + page_size, _UNWRITTEN, dtype=np.int64)
        """The token whose K/V each slot would hold."""
        self._positions = np.full(slots + page_size, _UNWRITTEN, dtype=np.int64)
        self._table = np.zeros((max_running + 1, context_length), dtype=np.int32)
        self._sampled_last = np.zeros(max_running + 1, dtype=np.int32)
        self._pending: deque[ScriptedInFlight] = deque()
        self.plans: list[StepPlan] = []
        """Every step, in order."""
        self.violations: list[str] = []
        """What plans did that no plan may do. A scheduler may take it for a failed step, so tests look here."""

    def launch(self, plan: StepPlan) -> "ScriptedInFlight":
        """Start a step. What its computation raises is raised by its `result`."""
        before = self.plans[-1] if self.plans else None
        self.plans.append(plan)
        self._demand(_names_only_what_was_sampled(plan, before), f"step {plan.step} names tokens nobody sampled")
        flight = ScriptedInFlight(self, plan)
        self._pending.append(flight)
        if not self._lazy:
            self.compute(flight)
        elif len(self._pending) > 2:
            self.compute(self._pending[0])
        return flight

    def compute(self, flight: "ScriptedInFlight") -> None:
        """Compute this step and all that were launched before it, in order."""
        while flight in self._pending:
            self._pending.popleft().compute()

    def answers(self, plan: StepPlan) -> list[Answer]:
        """Write the step's tokens, and ask the script about each sample."""
        for write in plan.writes:
            self._table[write.req_row, write.start : write.start + len(write.slots)] = write.slots
        self._demand(self._shares_what_is_told(plan), f"step {plan.step} tells of slots that its rows do not share")
        for row, stretch in _stretches(plan):
            tokens = plan.tokens[stretch]
            tokens = np.where(tokens == SAMPLED_LAST, self._sampled_last[row.req_row], tokens)
            self._write(row, tokens, plan.slots[stretch])
        return [
            self._script(history[: len(history) - behind])
            for row in plan.rows
            if row.samples
            for history in [self.history(row)]
            for behind in reversed(range(row.samples))
        ]

    def _shares_what_is_told(self, plan: StepPlan) -> bool:
        """Whether each run is one by `SharedRun`, and none of a row's runs overlap."""
        covered = {i: np.zeros(row.start, np.bool_) for i, row in enumerate(plan.rows)}
        for run in plan.shared:
            rows = run.rows.tolist()
            slots = self._table[[plan.rows[i].req_row for i in rows], run.start : run.stop]
            if len(rows) < 2 or rows != sorted(set(rows)) or not run.start < run.stop or (slots != slots[0]).any():
                return False
            for own in (covered[i] for i in rows):
                if run.stop > len(own) or own[run.start : run.stop].any():
                    return False
                own[run.start : run.stop] = True
        return True

    def scores(self, plan: StepPlan) -> tuple[tuple[TokenLogprobs, ...], ...]:
        """Ask the script about what the plan scores of its prompts. The step's tokens are written."""
        return tuple(self._scores(plan, scored) for scored in plan.scored)

    def _scores(self, plan: StepPlan, scored: Scored) -> tuple[TokenLogprobs, ...]:
        row, stretch = list(_stretches(plan))[scored.row]
        first, count = scored.first - stretch.start, len(scored.following)
        self._demand(first >= 0 and first + count <= row.q_len, f"step {plan.step} scores what it does not compute")
        within = plan.tokens[scored.first + 1 : scored.first + count]
        self._demand(bool((within == scored.following[:-1]).all()), f"step {plan.step} scores tokens of no prompt")
        history = self.history(row)
        return tuple(
            _told(self._script(history[: row.start + first + i + 1]), token, scored.top)
            for i, token in enumerate(scored.following.tolist())
        )

    def remember(self, plan: StepPlan, tokens: tuple[tuple[int, ...], ...]) -> None:
        """Keep what every row sampled, for steps that name `SAMPLED_LAST`; 0 for a row that failed."""
        for row, sampled in zip((row for row in plan.rows if row.samples), tokens, strict=True):
            self._sampled_last[row.req_row] = sampled[-1] if sampled else 0

    def _write(self, row: Row, tokens: NDArray[np.int32], slots: NDArray[np.int32]) -> None:
        self._table[row.req_row, row.start : row.start + row.q_len] = slots
        self.pool[slots] = tokens
        self._positions[slots] = np.arange(row.start, row.start + row.q_len)

    def history(self, row: Row) -> list[int]:
        """The tokens that a row's last query sees. Raises `AssertionError` where a slot holds another position."""
        slots = self._table[row.req_row, : row.start + row.q_len]
        in_place = (self._positions[slots] == np.arange(len(slots))).all()
        self._demand(bool(in_place), f"row {row} reads slots of other positions")
        return [int(token) for token in self.pool[slots]]

    def _demand(self, holds: bool, violation: str) -> None:
        if not holds:
            self.violations.append(violation)
            raise AssertionError(violation)

    def stats(self) -> dict[str, int]:
        """Steps computed, and query rows as attention would see them."""
        rows = [row for plan in self.plans for row in plan.rows]
        return {"forwards": len(self.plans), "attention_query_rows": sum(row.q_len for row in rows)}

    def close(self) -> None:
        """Nothing is left to end."""


class ScriptedInFlight:
    """A scripted step; tokens are final when computed, logits are sampled like a real model's."""

    def __init__(self, executor: ScriptedExecutor, plan: StepPlan) -> None:
        self._executor = executor
        self._plan = plan
        self._answers: list[Answer] | None = None
        self._inputs: SampleInputs | None = None
        self._result = StepResult(tokens=())
        self._scores: tuple[tuple[TokenLogprobs, ...], ...] = ()
        self._failure: Exception | None = None

    def compute(self) -> None:
        """Ask the script, and sample if that was ordered already."""
        try:
            self._answers = self._executor.answers(self._plan)
            self._scores = self._executor.scores(self._plan)
            self._sample()
        except Exception as error:  # noqa: BLE001 - handed on by `result`, where the caller expects it
            self._failure = error

    def sample(self, inputs: SampleInputs) -> None:
        """Sample where the answer is logits."""
        self._inputs = inputs
        self._sample()

    def _sample(self) -> None:
        if self._answers is None or self._inputs is None:
            return
        tokens: list[tuple[int, ...]] = []
        errors: dict[int, str] = {}
        logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
        for i, answer in enumerate(self._answers):
            if not isinstance(answer, np.ndarray):
                allowed = _allowed(self._inputs.mask, i)
                if allowed is not None and not allowed[answer // WORD] >> answer % WORD & 1:
                    answer = read_row(allowed)[0]
                tokens.append((answer,))
                if i in self._inputs.logprobs:
                    logprobs[i] = (_told(self._answers[i], answer, self._inputs.logprobs[i]),)
                continue
            one = _sample_one(answer, self._inputs, i)
            tokens += one.tokens
            if one.errors:
                errors[i] = one.errors[0]
            if one.logprobs:
                logprobs[i] = one.logprobs[0]
        self._result = by_row(StepResult(tuple(tokens), errors, logprobs), self._plan.rows)
        self._executor.remember(self._plan, self._result.tokens)

    def result(self) -> StepResult:
        """The step's tokens. Raises what the script raised."""
        self._executor.compute(self)
        if self._failure is not None:
            raise self._failure
        return replace(self._result, scores=self._scores)


def _stretches(plan: StepPlan) -> Iterator[tuple[Row, slice]]:
    """Every row with its place among the plan's tokens."""
    offset = 0
    for row in plan.rows:
        yield row, slice(offset, offset + row.q_len)
        offset += row.q_len


def _names_only_what_was_sampled(plan: StepPlan, before: StepPlan | None) -> bool:
    """Whether `SAMPLED_LAST` stands only where a row of one token goes on where the step before sampled."""
    sampled = {(row.req_row, row.start + row.q_len) for row in (before.rows if before else ()) if row.samples == 1}
    return all(
        row.q_len == 1 and (row.req_row, row.start) in sampled
        for row, stretch in _stretches(plan)
        if (plan.tokens[stretch] == SAMPLED_LAST).any()
    )


def _sample_one(logits: NDArray[np.float32], inputs: SampleInputs, i: int) -> StepResult:
    import torch

    from rtk.model.sampler import sample

    allowed = _allowed(inputs.mask, i)
    one = SampleInputs(
        temperature=inputs.temperature[i : i + 1],
        top_p=inputs.top_p[i : i + 1],
        top_k=inputs.top_k[i : i + 1],
        uniform=inputs.uniform[i : i + 1],
        banned={0: inputs.banned[i]} if i in inputs.banned else {},
        mask=None if allowed is None else Mask(np.zeros(1, np.int32), allowed[None]),
        min_p=None if inputs.min_p is None else inputs.min_p[i : i + 1],
        penalties=_penalties(inputs.penalties, i),
        bias=_bias(inputs.bias, i),
        logprobs={0: inputs.logprobs[i]} if i in inputs.logprobs else {},
    )
    return sample(torch.from_numpy(logits.copy())[None], one, vocab_size=len(logits)).result()


def _allowed(mask: Mask | None, i: int) -> NDArray[np.int32] | None:
    """Row i's words of the mask."""
    return dict(zip(mask.rows.tolist(), mask.words, strict=True)).get(i) if mask else None


def _penalties(given: Penalties | None, i: int) -> Penalties | None:
    """Row i's."""
    if given is None or i not in given.rows:
        return None
    at = given.rows.tolist().index(i)
    stop = int(given.held[: at + 1].sum())
    own, entries = slice(at, at + 1), slice(stop - int(given.held[at]), stop)
    return Penalties(
        rows=np.zeros(1, np.int32),
        held=given.held[own],
        tokens=given.tokens[entries],
        counts=given.counts[entries],
        repetition=given.repetition[own],
        presence=given.presence[own],
        frequency=given.frequency[own],
    )


def _bias(given: Bias | None, i: int) -> Bias | None:
    """Row i's."""
    if given is None or i not in given.rows:
        return None
    own = given.rows == i
    return Bias(np.zeros(int(own.sum()), np.int32), given.tokens[own], given.values[own])


def _told(answer: Answer, token: int, top: int) -> TokenLogprobs:
    """How probable the script finds a token."""
    if not isinstance(answer, np.ndarray):
        return TokenLogprobs(token, 0.0 if token == answer else -np.inf, ((answer, 0.0),) if top else ())
    import torch

    from rtk.model.logprobs import entries, told

    tokens = torch.tensor([token])
    found = told(torch.from_numpy(answer)[None], tokens, top, vocab_size=len(answer))
    return entries([token], found, [top])[0]
