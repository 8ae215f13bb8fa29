"""A scripted executor: the model is a function of the token history, and the KV pool holds token ids.

Because every history is read back through the slot table, a wrong slot anywhere in the books gives another history,
hence another answer: scheduler and cache are tested without a model, and exactly.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rtk.schedule.batch import Row, SampleInputs, StepPlan, StepResult

Answer = int | NDArray[np.float32]
Script = Callable[[list[int]], Answer]
"""From all tokens up to and including the last computed one to the next: a token id, or logits to sample from."""

_UNWRITTEN = -1


class ScriptedExecutor:
    """Computes steps by script. `history` and the pool are there for tests to look at."""

    def __init__(self, script: Script, *, slots: int, page_size: int, max_running: int, context_length: int) -> None:
        self._script = script
        self.pool = np.full(slots + page_size, _UNWRITTEN, dtype=np.int64)
        """The token whose K/V each slot would hold."""
        self._positions = np.full(slots + page_size, _UNWRITTEN, dtype=np.int64)
        self._table = np.zeros((max_running + 1, context_length), dtype=np.int32)
        self.plans: list[StepPlan] = []
        """Every step, in order."""

    def launch(self, plan: StepPlan) -> "ScriptedInFlight":
        """Write the step's tokens and read each row's history back."""
        self.plans.append(plan)
        for write in plan.writes:
            self._table[write.req_row, write.start : write.start + len(write.slots)] = write.slots
        offset = 0
        for row in plan.rows:
            stretch = slice(offset, offset + row.q_len)
            self._write(row, plan.tokens[stretch], plan.slots[stretch])
            offset += row.q_len
        return ScriptedInFlight([self._script(self.history(row)) for row in plan.rows if row.samples])

    def _write(self, row: Row, tokens: NDArray[np.int32], slots: NDArray[np.int32]) -> None:
        self._table[row.req_row, row.start : row.start + row.q_len] = slots
        self.pool[slots] = tokens
        self._positions[slots] = np.arange(row.start, row.start + row.q_len)

    def history(self, row: Row) -> list[int]:
        """The tokens that a row's last query sees. Raises `AssertionError` where a slot holds another position."""
        slots = self._table[row.req_row, : row.start + row.q_len]
        assert (self._positions[slots] == np.arange(len(slots))).all(), f"row {row} reads slots of other positions"
        return [int(token) for token in self.pool[slots]]

    def stats(self) -> dict[str, int]:
        """Steps computed, and query rows as attention would see them."""
        rows = [row for plan in self.plans for row in plan.rows]
        return {"forwards": len(self.plans), "attention_query_rows": sum(row.q_len for row in rows)}


class ScriptedInFlight:
    """A scripted step; tokens are final at launch, logits are sampled like a real model's."""

    def __init__(self, answers: list[Answer]) -> None:
        self._answers = answers
        self._result = StepResult(tokens=())

    def sample(self, inputs: SampleInputs) -> None:
        """Sample the rows that were answered with logits."""
        tokens: list[tuple[int, ...]] = []
        errors: dict[int, str] = {}
        for i, answer in enumerate(self._answers):
            if not isinstance(answer, np.ndarray):
                tokens.append((answer,))
                continue
            one = _sample_one(answer, inputs, i)
            tokens += one.tokens
            if one.errors:
                errors[i] = one.errors[0]
        self._result = StepResult(tuple(tokens), errors)

    def result(self) -> StepResult:
        """The step's tokens."""
        return self._result


def _sample_one(logits: NDArray[np.float32], inputs: SampleInputs, i: int) -> StepResult:
    import torch

    from rtk.model.sampler import sample

    one = SampleInputs(
        temperature=inputs.temperature[i : i + 1],
        top_p=inputs.top_p[i : i + 1],
        top_k=inputs.top_k[i : i + 1],
        uniform=inputs.uniform[i : i + 1],
        banned={0: inputs.banned[i]} if i in inputs.banned else {},
    )
    return sample(torch.from_numpy(logits)[None], one, vocab_size=len(logits))
