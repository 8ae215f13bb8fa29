"""The scheduler over a table of what steps cost, in virtual time: see bench/chunk.py."""

import heapq
import itertools
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from rtk.cache.key import pack
from rtk.plugin.host import installed
from rtk.schedule.batch import SampleInputs, StepPlan, StepResult
from rtk.schedule.budget import Limits
from rtk.schedule.build import Policies, build_scheduler
from rtk.schedule.messages import NewRequest, Outbound, Output
from rtk.schedule.params import SamplingParams
from rtk.schedule.settings import Settings

CONTEXT, RUNNING, POOL = 4096, 64, 46603
ROWS = (1, 4, 8, 16, 32, 64, 256)
LINEAR_MS = (10.1, 10.9, 12.0, 22.2, 40.7, 72.7, 263.5)
"""All linear layers of the demo model for so many rows, by panels, 2 threads, on the machine of bench/RESULTS.md."""
MORE_MS = 1.01
"""For each row above these."""
WIDTH, LAYERS, KV_BYTES = 576, 30, 46080
QUERIES_A_S, SINGLE_A_S, BYTES_A_S = 170e9, 140e9, 40e9
"""Operations a second of attention of prompts and of single queries, and bytes of K/V; shared ones are read once."""
REST_MS, REST_ROW_MS = 0.8, 0.08


@dataclass(frozen=True)
class Sizes:
    """What is compared."""

    chunk: int
    mixed: bool
    beside: int | None = None


@dataclass(frozen=True)
class Job:
    """A request: when it comes, its prompt, and how long its answer gets."""

    at_s: float
    prompt: list[int]
    new: int


@dataclass
class Answer:
    """When its tokens came."""

    asked_s: float
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Figures:
    """Those of bench/peers/load.py."""

    wall_s: float
    tok_s: float
    ttft_s: float
    gap_ms: float


class Clock:
    now = 0.0


class Costly:
    """An executor whose steps take what the tables say, and give random tokens."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rng = random.Random(1)
        self._table = np.zeros((RUNNING + 1, CONTEXT), dtype=np.int32)

    def launch(self, plan: StepPlan) -> "CostlyStep":
        for write in plan.writes:
            self._table[write.req_row, write.start : write.start + len(write.slots)] = write.slots
        at = 0
        for row in plan.rows:
            self._table[row.req_row, row.start : row.start + row.q_len] = plan.slots[at : at + row.q_len]
            at += row.q_len
        return CostlyStep(self, plan)

    def compute(self, plan: StepPlan) -> StepResult:
        self._clock.now += self.seconds(plan)
        rows = [row for row in plan.rows if row.samples]
        return StepResult(tuple((self._rng.randrange(1000, 40000),) for _ in rows))

    def seconds(self, plan: StepPlan) -> float:
        rows = sum(row.q_len for row in plan.rows)
        linear = float(np.interp(rows, ROWS, LINEAR_MS)) + max(0, rows - ROWS[-1]) * MORE_MS
        prompts = sum(r.q_len * (r.start + r.q_len / 2) for r in plan.rows if r.q_len > 1)
        read = [self._table[r.req_row, : r.start + (r.q_len == 1)] for r in plan.rows]
        single = sum(r.start + 1 for r in plan.rows if r.q_len == 1)
        attention = 4 * WIDTH * LAYERS * (prompts / QUERIES_A_S + single / SINGLE_A_S)
        attention += len(np.unique(np.concatenate(read))) * KV_BYTES / BYTES_A_S
        return (linear + REST_MS + REST_ROW_MS * len(plan.rows)) / 1e3 + attention

    def stats(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        pass


class CostlyStep:
    def __init__(self, executor: Costly, plan: StepPlan) -> None:
        self._executor, self._plan = executor, plan

    def sample(self, inputs: SampleInputs) -> None:
        pass

    def result(self) -> StepResult:
        return self._executor.compute(self._plan)


class Simulation:
    """A server, and its clients."""

    def __init__(self, sizes: Sizes) -> None:
        self._clock = Clock()
        self._numbers = itertools.count()
        eviction, schedule = (installed().get(*one) for one in (("eviction", "lru"), ("schedule", "fcfs")))
        policies = Policies(
            eviction=eviction.build(eviction.plugin.options()),
            eviction_name="lru",
            schedule=schedule.build(schedule.plugin.options()),
            schedule_name="fcfs",
            schedule_requires=schedule.plugin.requires,
        )
        limits = Limits(
            context_length=CONTEXT,
            pool_tokens=POOL,
            page_size=1,
            max_running=RUNNING,
            max_prefill_tokens=16384,
            chunk_tokens=sizes.chunk,
            mixed_tokens=sizes.beside,
        )
        self._scheduler = build_scheduler(
            policies,
            Costly(self._clock),
            limits,
            cache_enabled=True,
            settings=Settings(mixed_chunk=sizes.mixed),
            pin_budget=None,
            end_tokens=frozenset(),
            match_stop=lambda *_: None,
            clock=lambda: self._clock.now,
            rng=random.Random(1),
        )

    def serve(self, jobs: list[Job]) -> list[Answer]:
        """Until all have ended."""
        begin, scheduler = self._clock.now, self._scheduler
        answers = {f"{next(self._numbers)}": Answer(begin + job.at_s) for job in jobs}
        coming = [(answers[rid].asked_s, rid, job) for rid, job in zip(answers, jobs, strict=True)]
        heapq.heapify(coming)
        while coming or scheduler.busy:
            if not scheduler.busy:
                self._clock.now = max(self._clock.now, coming[0][0])
            while coming and coming[0][0] <= self._clock.now:
                _, rid, job = heapq.heappop(coming)
                params = SamplingParams(temperature=0.0, max_new_tokens=job.new, ignore_eos=True)
                scheduler.receive([NewRequest(rid=rid, tokens=pack(job.prompt), params=params)])
            self._note(scheduler.step(), answers)
        return list(answers.values())

    def _note(self, messages: list[Outbound], answers: dict[str, Answer]) -> None:
        for message in messages:
            if isinstance(message, Output):
                answers[message.rid].times.append(self._clock.now)
                answers[message.rid].tokens += message.tokens


def figures(answers: list[Answer]) -> Figures:
    wall = max(a.times[-1] for a in answers) - min(a.asked_s for a in answers)
    gaps = [after - before for a in answers for before, after in itertools.pairwise(a.times)]
    return Figures(
        wall_s=wall,
        tok_s=sum(len(a.tokens) for a in answers) / wall,
        ttft_s=statistics.median(a.times[0] - a.asked_s for a in answers),
        gap_ms=1e3 * max(gaps, default=0.0),
    )


def scenarios(sizes: Sizes) -> Iterator[tuple[str, Figures]]:
    """Those of bench/peers/load.py that more than one request is in."""
    rng = random.Random(1)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(1000, 40000) for _ in range(count)]

    yield "unshared", figures(Simulation(sizes).serve([Job(0, tokens(256), 64) for _ in range(16)]))
    simulation, prefix = Simulation(sizes), tokens(1200)
    for name in ("shared cold", "shared warm"):
        yield name, figures(simulation.serve([Job(0, prefix + tokens(12), 64) for _ in range(32)]))
    yield "turns", _turns(Simulation(sizes), [tokens(600)] * 8, lambda: tokens(120))
    short, long = [Job(0, tokens(64), 96) for _ in range(4)], [Job(1.0 + i, tokens(3000), 4) for i in range(4)]
    answers = Simulation(sizes).serve([*short, *long])
    yield "mixed: short", figures(answers[:4])
    yield "mixed: long", figures(answers[4:])


def _turns(simulation: Simulation, histories: list[list[int]], said) -> Figures:
    turns = []
    for _ in range(4):
        histories = [[*history, *said()] for history in histories]
        answers = simulation.serve([Job(0, history, 48) for history in histories])
        histories = [history + answer.tokens for history, answer in zip(histories, answers, strict=True)]
        turns.append((figures(answers), sum(len(answer.tokens) for answer in answers)))
    wall = sum(turn.wall_s for turn, _ in turns)
    return Figures(
        wall_s=wall,
        tok_s=sum(tokens for _, tokens in turns) / wall,
        ttft_s=statistics.median(turn.ttft_s for turn, _ in turns),
        gap_ms=max(turn.gap_ms for turn, _ in turns),
    )
