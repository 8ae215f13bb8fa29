"""Requests that share a cached prefix, from the scheduler's tree down to attention, against transformers' generate."""

import pytest
from test_runner import generated
from tiny_models import make_runner

from rtk.model.inline_executor import InlineExecutor
from rtk.plugin.testing.harness import Harness

STEM = [(7 * i + 3) % 90 for i in range(60)]
PROMPTS = [[*STEM, 1, 2], [*STEM, 4, *STEM[:20], 5], [*STEM, 4, *STEM[:20], 6, 7], [*STEM[:30], 8], [9, 10]]


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("mixed", [False, True], ids=["apart", "mixed"])
def test_what_is_told_of_shared_slots_changes_no_answer(zoo, monkeypatch, page_size, mixed):
    monkeypatch.setattr("rtk.schedule.sharing.WORTH", 1)
    h = Harness(pool_tokens=1024, page_size=page_size, context_length=256, chunk_tokens=32, mixed_chunk=mixed)
    runner = make_runner(zoo.load("llama"), slots=1024, page_size=page_size, rows=9, context_length=256)
    executor, plans = InlineExecutor(runner, vocab_size=99), []
    launch = executor.launch
    executor.launch = lambda plan: plans.append(plan) or launch(plan)
    h.scheduler._executor = executor
    for i, prompt in enumerate(PROMPTS):
        h.add(f"{i}", prompt, max_new_tokens=8)
        for _ in range(3):
            h.step()
    h.run()
    wanted = generated(zoo.eager("llama"), PROMPTS, 8)
    assert [h.tokens[f"{i}"] for i in range(len(PROMPTS))] == wanted
    told = {(run.start, run.stop) for plan in plans for run in plan.shared}
    assert len(told) > 2 and max(stop for _, stop in told) >= 80
