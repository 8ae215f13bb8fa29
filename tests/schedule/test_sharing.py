"""What plans tell of slots that rows share. The scripted executor checks each told run; here: that it is told."""

import random

import pytest

from rtk.plugin.testing.harness import Harness, digest

STEM = range(100, 130)


def told(plan):
    return [(run.rows.tolist(), run.start, run.stop) for run in plan.shared]


def decoding(h):
    """Of the last step that decodes everybody."""
    return told(max(h.executor.plans, key=lambda plan: (len(plan.rows), plan.step)))


def first(h, *prompts, **more):
    """Prompts one after the other, so that each finds what those before it computed."""
    for i, prompt in enumerate(prompts):
        h.add(f"{i}", prompt, max_new_tokens=20, **more)
        h.step()
    h.step()


def test_a_common_prefix_is_told_up_to_where_the_rows_part():
    h = Harness()
    first(h, [*STEM, 1, 2], [*STEM, 3], [*STEM, 4, 5, 6])
    assert decoding(h) == [([0, 1, 2], 0, 30)]


def test_rows_that_share_more_have_a_run_of_their_own():
    h = Harness(pool_tokens=512)
    first(h, [*STEM, *range(10), 1], [*STEM, *range(20), 2], [*STEM, *range(10), 3], [*STEM, *range(20), 4])
    assert decoding(h) == [([0, 1, 2, 3], 0, 40), ([1, 3], 40, 50)]


def test_two_prefixes_at_once():
    h = Harness()
    first(h, [*STEM, 1], [*range(20), 1], [*range(20), 2], [*STEM, 2])
    assert sorted(decoding(h)) == [([0, 3], 0, 30), ([1, 2], 0, 20)]


def test_only_whole_pages_are_shared():
    h = Harness(page_size=16)
    first(h, [*STEM, 1, 2, 3], [*STEM, 4, 5, 6])
    assert decoding(h) == [([0, 1], 0, 16)]


def test_a_run_that_is_not_worth_a_call_joins_those_below_it(monkeypatch):
    monkeypatch.setattr("rtk.schedule.sharing.WORTH", 15)
    h = Harness()
    first(h, [7, *STEM, 1], [7, *STEM, 2], [7, *range(20), 1], [7, *range(20), 2], [7, 7])
    assert decoding(h) == [([0, 1], 0, 31), ([2, 3], 0, 21)]


def test_nothing_is_told_of_nothing_cached():
    h = Harness(cache_enabled=False)
    first(h, [*STEM, 1], [*STEM, 2])
    assert decoding(h) == []


def test_prompts_that_are_computed_together_are_told_what_they_found():
    h = Harness()
    first(h, STEM)
    h.add("a", [*STEM, 1, 2, 3], max_new_tokens=2)
    h.add("b", [*STEM, 4, 5], max_new_tokens=2)
    h.step()
    assert told(h.executor.plans[-1]) == [([0, 1], 0, 30)]
    assert [row.q_len for row in h.executor.plans[-1].rows] == [3, 2]


def test_prompts_that_compute_the_same_side_by_side_share_it_once_they_are_in_the_tree():
    """The second one's own copies are freed; its row then names the slots of the first."""
    h = Harness()
    h.add("a", [*STEM, 1], max_new_tokens=5)
    h.add("b", [*STEM, 2], max_new_tokens=5)
    for _ in range(3):
        h.step()
    assert (told(h.executor.plans[0]), told(h.executor.plans[-1])) == ([], [([0, 1], 0, 30)])


@pytest.mark.stepwise
def test_runs_are_found_anew_only_for_another_batch(monkeypatch):
    from rtk.schedule import sharing

    found, find = [], sharing._find
    monkeypatch.setattr(sharing, "_find", lambda nodes: found.append(nodes) or find(nodes))
    h = Harness()
    first(h, [*STEM, 1], [*STEM, 2])
    before = len(found)
    for _ in range(10):
        h.step()
    assert len(found) == before
    h.add("c", [*range(110), 1], max_new_tokens=2)
    h.step()
    assert len(found) == before + 1


def common(a, b):
    """Tokens at the beginning of two leases that lie in the same nodes."""
    return sum(node.size for node in set(a.nodes()) & set(b.nodes()))


def watched(h):
    """Of each pair of rows that is launched together: the tokens that they have in common, and those that are told."""
    launch, pairs = h.scheduler._launch, []

    def look(batch):
        paths = [({i, j}, common(a.lease, b.lease)) for i, a in enumerate(batch) for j, b in enumerate(batch[:i])]
        flight = launch(batch)
        runs = [({*run.rows.tolist()}, run.stop - run.start) for run in flight.plan.shared]
        pairs.extend((tokens, sum(size for rows, size in runs if pair <= rows)) for pair, tokens in paths)
        return flight

    h.scheduler._launch = look
    return pairs


@pytest.mark.stepwise
@pytest.mark.parametrize("seed", range(4))
def test_two_rows_are_told_exactly_what_their_paths_have_in_common(seed):
    """Over random work with retraction, chunks, mixed steps, overlap, pages and splits of nodes that are held."""
    rng = random.Random(seed)
    pairs, retracted = [], 0
    for _ in range(5):
        page = rng.choice([1, 4, 16])
        h = Harness(
            script=digest,
            page_size=page,
            pool_tokens=16 * rng.randint(6, 10),
            chunk_tokens=rng.choice([None, 16, 16 + page]),
            mixed_chunk=rng.random() < 0.5,
            overlap=rng.random() < 0.7,
            lazy=rng.random() < 0.5,
            conservativeness=0.05,
            max_running=rng.randint(3, 8),
        )
        seen = watched(h)
        for i in range(30):
            stem = [*range(100 * rng.randint(0, 1), 200)][: rng.randint(0, 60)]
            h.add(f"{i}", [*stem, *[900 + i] * rng.randint(1, 9)], max_new_tokens=rng.randint(0, 40))
            while h.scheduler.busy and (i == 29 or rng.random() < 0.6):
                h.step()
        pairs += seen
        retracted += h.stat("retractions")
    assert all(in_common == told for in_common, told in pairs)
    shared = sum(told > 0 for _, told in pairs)
    assert shared > 100 and len(pairs) > shared and retracted > 5
