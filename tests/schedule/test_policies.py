"""What the built-in schedule policies do, in small numbers."""

import numpy as np
import pytest

from rtk.plugin.host import installed
from rtk.plugin.testing.harness import Harness, count_up
from rtk.plugin.testing.schedule import context, random_columns


def policy(name, **options):
    entry = installed().get("schedule", name)
    return entry.build(entry.plugin.options(**options))


def order_of(policy, columns, seed=0):
    return np.lexsort((columns.id, *reversed(policy.rank(columns, context(seed))))).tolist()


def served(name, prompts, new=None, **options):
    """The order in which prompts get their first token, one at a time."""
    h = Harness(script=count_up, max_running=1, pool_tokens=512, schedule=policy(name, **options))
    h.add("first", [1], max_new_tokens=2)  # runs while the others arrive
    h.step()
    for rid, prompt in prompts.items():
        h.add(rid, prompt, max_new_tokens=(new or {}).get(rid, 1))
    h.run()
    return [rid for rid in h.finished if rid != "first"]


def test_lof_takes_the_longest_answer_first():
    prompts = {"a": [1] * 5, "b": [2] * 5, "c": [3] * 5, "d": [4] * 5}
    assert served("lof", prompts, new={"a": 3, "b": 9, "c": 5, "d": 9}) == ["b", "d", "c", "a"]


def test_priority_takes_the_highest_first_and_equals_in_order_of_arrival():
    h = Harness(max_running=1, schedule=policy("priority"))
    h.add("first", [1], max_new_tokens=2)
    h.step()
    for rid, priority in {"a": 0, "b": 7, "c": -1, "d": 7, "e": 10**9}.items():
        h.add(rid, [2, 3], max_new_tokens=1, priority=priority)
    h.run()
    assert [rid for rid in h.finished if rid != "first"] == ["e", "b", "d", "a", "c"]


def test_shortest_prefill_first_counts_uncached_tokens():
    h = Harness(max_running=1, pool_tokens=512, schedule=policy("shortest-prefill-first"))
    h.add("stem", range(100, 140), max_new_tokens=2)
    h.step()
    h.add("short", [5] * 20, max_new_tokens=1)
    h.add("hit", [*range(100, 140), 7, 8], max_new_tokens=1)  # 42 tokens, of which 40 are cached
    h.run()
    assert [rid for rid in h.finished if rid != "stem"] == ["hit", "short"]


@pytest.mark.stepwise
@pytest.mark.parametrize("age", [1, 4])
def test_shortest_prefill_first_lets_a_long_one_start_after_age_times_its_length(age):
    h = Harness(max_running=1, pool_tokens=512, schedule=policy("shortest-prefill-first", age=age))
    h.add("first", [1], max_new_tokens=2)
    h.step()
    h.add("long", range(100, 140), max_new_tokens=1)
    before = 0
    while "long" not in h.finished:
        h.add(f"s{before}", [1000 + before] * 5, max_new_tokens=1)  # one short request for each step, for ever
        h.step()
        before += 1
        assert before < 40 * age
    others = h.stat("prefill_tokens") - 40 - 1
    assert 40 * age - 5 * age <= others <= 40 * age + 5


def test_random_is_a_draw_of_its_own_seed_or_of_the_engines():
    columns = random_columns(50, seed=1)
    assert order_of(policy("random"), columns, seed=3) == order_of(policy("random"), columns, seed=3)
    assert order_of(policy("random"), columns, seed=3) != order_of(policy("random"), columns, seed=4)
    seeded = policy("random", seed=9)
    first, second = order_of(seeded, columns, seed=3), order_of(seeded, columns, seed=3)
    assert first != second  # drawn anew in each step
    again = policy("random", seed=9)
    assert [order_of(again, columns, seed=4) for _ in range(2)] == [first, second]
