"""Captured steps without a device: what is recorded is run again, over the memory that it was recorded with."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_models import make_runner

from rtk.model.cuda_graphs import LARGEST, sizes
from rtk.model.fused import fuse_layers
from rtk.plugin import Options
from rtk.schedule.batch import SAMPLED_LAST, Row, Scored, StepPlan
from rtk_attention.torch.backend import TorchAttention

NEW = 6


class Replayable(TorchAttention):
    """Torch's own plans differ in shape from step to step; what is run again looks the plan up."""

    capabilities = replace(TorchAttention.capabilities, graphs=True)

    def plan(self, batch, workspace):
        self.told = [*getattr(self, "told", ()), batch]
        return [super().plan(batch, workspace), workspace]

    def replan(self, plan, batch):
        plan[0] = self.plan(batch, plan[1])[0]

    def forward(self, q, kv, call, plan):
        return super().forward(q, kv, call, plan[0])


class Recorder:
    """As a device records: runs once, and then the same again. `failures` are raised one by one, None: none."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.replays = 0

    def __call__(self, run):
        if self.failures and (failure := self.failures.pop(0)):
            raise failure
        run()

        def replay():
            self.replays += 1
            run()

        return replay


class Requests:
    """Prompts that are computed, and go on side by side; rows from 1 on, pages anywhere."""

    def __init__(self, runner, prompts, seed=0):
        random = np.random.default_rng(seed)
        self.runner = runner
        self.tokens = [list(prompt) for prompt in prompts]
        self.rows = (random.permutation(len(prompts)) + 1).tolist()
        self.slots = np.split(random.permutation(np.arange(1, 1 + 64 * len(prompts))), len(prompts))
        for i, prompt in enumerate(self.tokens):
            self.step([(i, 0, len(prompt), 1)])

    def plan(self, parts, **more):
        """A step of (request, start, q_len, samples)."""
        tokens = np.concatenate([self.tokens[i][start : start + q_len] for i, start, q_len, _ in parts])
        slots = np.concatenate([self.slots[i][start : start + q_len] for i, start, q_len, _ in parts])
        rows = tuple(Row(self.rows[i], *rest) for i, *rest in parts)
        return StepPlan(0, rows, tokens.astype(np.int32), slots.astype(np.int32), **more)

    def step(self, parts):
        logits = self.runner.compute(self.plan(parts)).logits
        for (i, *_), best in zip(parts, logits.argmax(dim=-1).tolist(), strict=True):
            self.tokens[i].append(best)
        return logits

    def decode(self, which):
        """One more token of each of these."""
        return self.step([(i, len(self.tokens[i]) - 1, 1, 1) for i in which])


def captured(loaded, *, most=8, record=None, **about):
    runner = make_runner(loaded, rows=9, backend=Replayable(Options()), **about)
    fuse_layers(loaded)
    record = record or Recorder()
    runner.capture(most, record)
    return runner, record


PROMPTS = [[5, 6, 7], [1, 2], list(range(1, 31)), [9, 8], [40, 41, 42, 43]]


def test_sizes():
    assert sizes(1) == [1]
    assert sizes(3) == [1, 2, 3]
    assert sizes(64) == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]
    assert sizes(100) == [*sizes(64), 80, 96, 100]
    assert sizes(1000) == sizes(LARGEST) == [*sizes(64), *range(80, 257, 16)]


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt2", "gpt_oss", "deepseek_v3"])
def test_replayed_steps_give_what_generate_gives(zoo, kind):
    model = zoo.eager(kind)
    wanted = [
        model.generate(ids := torch.tensor([prompt]), attention_mask=torch.ones_like(ids), max_new_tokens=NEW,
                       do_sample=False)[0, len(prompt) :].tolist()
        for prompt in PROMPTS
    ]  # fmt: skip
    runner, record = captured(zoo.load(kind), page_size=16)
    requests = Requests(runner, PROMPTS)
    for step in range(NEW - 1):  # one more leaves early at each step, and then comes back
        requests.decode(range(5 - step))
    while behind := [i for i in range(5) if len(requests.tokens[i]) < len(PROMPTS[i]) + NEW]:
        requests.decode(behind)
    assert [own[-NEW:] for own in requests.tokens] == wanted
    steps = NEW - 1 + 4
    assert (record.replays, runner.stats.replayed, runner.stats.forwards) == (steps, steps, steps + 5)
    assert runner.stats.query_rows == sum(map(len, PROMPTS)) + 5 * (NEW - 1)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
def test_a_replayed_step_gives_the_logits_of_one_that_is_not(zoo, rows):
    answers = []
    for most in (8, 0):
        runner = make_runner(loaded := zoo.load("llama"), rows=9, backend=Replayable(Options()))
        fuse_layers(loaded)
        if most:
            runner.capture(most, Recorder())
        requests = Requests(runner, PROMPTS)
        answers.append(torch.stack([requests.decode(range(rows)) for _ in range(3)]))
        assert runner.stats.replayed == (3 if most else 0)
    assert answers[0].shape == (3, rows, 99)
    torch.testing.assert_close(answers[0], answers[1], rtol=0, atol=0 if rows in sizes(8) else 1e-5)


def test_rows_that_fill_up_are_padding_and_what_an_earlier_step_left_is_gone(zoo):
    runner, _ = captured(zoo.load("llama"))
    requests = Requests(runner, PROMPTS)
    requests.decode(range(5))
    requests.decode([1, 3, 4])
    backend = runner._backend
    *_, wide, narrow = backend.told
    assert [(len(view.q_lens), view.replayed) for view in (wide, narrow)] == [(8, True), (4, True)]
    assert wide.q_lens.tolist() == [1] * 8
    assert wide.kv_lens.tolist() == [4, 3, 31, 3, 5, 1, 1, 1]
    assert wide.req_rows.tolist() == [*requests.rows, 0, 0, 0]
    assert narrow.kv_lens.tolist() == [4, 4, 6, 1]
    assert narrow.req_rows.tolist() == [requests.rows[i] for i in (1, 3, 4)] + [0]
    assert narrow.slots.tolist() == [*(int(requests.slots[i][n]) for i, n in ((1, 3), (3, 3), (4, 5))), 0]
    assert int(wide.req_to_token[0, 0]) == 0
    assert narrow.slots.data_ptr() == wide.slots.data_ptr()


def test_a_graph_reads_the_same_memory_in_every_step_and_its_answers_are_kept_apart(zoo):
    loaded = zoo.load("llama")
    runner, _ = captured(loaded)
    seen = []
    loaded.model.get_input_embeddings().register_forward_pre_hook(lambda _, args: seen.append(args[0].data_ptr()))
    requests = Requests(runner, PROMPTS)
    del seen[:]
    first = requests.decode(range(5))
    before = first.clone()
    requests.decode(range(5))
    requests.decode(range(2))
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert torch.equal(first, before)


def test_a_step_may_name_tokens_that_the_host_has_not_seen(zoo):
    answers = []
    for unseen in (False, True):
        runner, record = captured(zoo.load("llama"))
        requests = Requests(runner, PROMPTS[:3])
        plan = requests.plan([(i, len(own) - 1, 1, 1) for i, own in enumerate(requests.tokens)])
        if unseen:
            runner.remember(plan, torch.tensor([own[-1] for own in requests.tokens]))
            plan = replace(plan, tokens=np.full(3, SAMPLED_LAST, np.int32))
        answers.append(runner.compute(plan).logits)
        assert record.replays == 1
    assert torch.equal(*answers)


def test_other_steps_are_computed_as_ever(zoo):
    runner, record = captured(zoo.load("llama"), most=3)
    requests = Requests(runner, PROMPTS)
    last = [(i, len(own) - 1, 1, 1) for i, own in enumerate(requests.tokens)]
    scored = Scored(0, 0, np.array([7], np.int32), 0)
    for parts, more in (
        (last[:4], {}),  # too many rows
        ([*last[:2], (2, 28, 2, 1)], {}),  # one goes on with its prompt
        ([last[0], (2, 29, 1, 0)], {}),  # one of these samples nothing
        ([(2, 28, 2, 2)], {}),  # a guess
        (last[:1], {"scored": (scored,)}),
    ):
        assert len(runner.compute(requests.plan(parts, **more)).logits) == sum(part[3] for part in parts)
    assert (record.replays, runner.stats.replayed) == (0, 0)
    requests.decode(range(3))
    assert (record.replays, runner.stats.replayed) == (1, 1)


def test_where_memory_does_not_suffice_for_a_graph_its_steps_take_none(zoo, caplog):
    full = torch.OutOfMemoryError("no memory")
    ended = RuntimeError("the capture was cut short")
    ended.__context__ = full
    with caplog.at_level(logging.INFO, "rtk.model.cuda_graphs"):
        runner, record = captured(zoo.load("llama"), record=Recorder(full, None, ended))
    requests = Requests(runner, PROMPTS)
    requests.decode(range(5))
    assert record.replays == 0
    requests.decode(range(2))  # in the graph of four rows
    assert record.replays == 1
    assert [record.getMessage() for record in caplog.records] == [
        "CUDA graphs for steps of up to 4 decoding rows",
        "CUDA graphs: none for 8 rows: memory does not suffice",
        "CUDA graphs: none for 2 rows: memory does not suffice",
    ]


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_what_cannot_be_captured_is_computed_as_ever(zoo, caplog, kind):
    runner, record = captured(zoo.load("llama"), record=Recorder(kind("operation not permitted\nwhen")))
    requests = Requests(runner, PROMPTS)
    requests.decode(range(2))
    assert (record.replays, runner.stats.replayed) == (0, 0)
    (told,) = caplog.records
    assert told.levelno == logging.WARNING
    problem = f"{kind.__name__}: operation not permitted when"
    assert told.getMessage() == f"CUDA graphs: none for 8 rows or fewer: {problem}"


def test_the_largest_is_captured_first(zoo):
    loaded = zoo.load("llama")
    runner = make_runner(loaded, rows=9, backend=Replayable(Options()))
    assert runner.capture(5, Recorder()) == [1, 2, 4, 5]
    assert [len(view.q_lens) for view in runner._backend.told] == [5, 4, 2, 1]
    assert runner.stats.forwards == 0
