"""Steps that are launched before the results of the ones before are known."""

import numpy as np
import pytest

from rtk.plugin.testing.harness import Harness, count_up, digest
from rtk.schedule.batch import SAMPLED_LAST
from rtk.schedule.messages import Flush, Flushed

pytestmark = pytest.mark.stepwise
OVERLAP = {"overlap": True, "lazy": True}


def books_are_closed(h):
    assert h.stat("free") + h.stat("evictable") == h.stat("pool")
    assert h.stat("held") == h.stat("protected") == 0
    assert h.stat("invariant_violations") == h.stat("commit_failures") == 0


class Order(Harness):
    """Notes when steps are launched and when their results are asked for."""

    def __post_init__(self):
        super().__post_init__()
        self.events = []
        launch = self.executor.launch

        def noted(plan):
            self.events.append(("launch", plan.step))
            flight = launch(plan)
            result = flight.result

            def asked():
                self.events.append(("result", plan.step))
                return result()

            flight.result = asked
            return flight

        self.executor.launch = noted


def test_a_step_is_launched_before_the_results_of_the_one_before_are_taken_in():
    h = Order(**OVERLAP)
    h.add("a", [1, 2], max_new_tokens=4)
    h.run()
    launches = [("launch", step) for step in (1, 2, 3, 4)]
    assert h.events == [
        launches[0],
        launches[1],
        ("result", 1),
        launches[2],
        ("result", 2),
        launches[3],
        ("result", 3),
        ("result", 4),
    ]
    assert h.tokens["a"] == [3, 4, 5, 6]
    named = [plan.tokens.tolist() for plan in h.executor.plans]
    assert named == [[1, 2], [SAMPLED_LAST], [SAMPLED_LAST], [SAMPLED_LAST]]  # no token passes through the host


@pytest.mark.parametrize("overlap", [False, True])
def test_a02_the_last_token_has_no_slot_left(overlap):
    h = Harness(pool_tokens=32, overlap=overlap, lazy=overlap)
    h.add("a", [11, 12, 13], max_new_tokens=5)
    h.run()
    assert (h.stat("evictable"), h.stat("free"), h.stat("wasted_rows")) == (7, 25, 0)


def test_an_end_known_late_costs_one_row_and_one_slot_which_come_back():
    h = Harness(pool_tokens=32, end_tokens=frozenset({16}), **OVERLAP)
    h.add("a", [11, 12, 13], max_new_tokens=9)
    while "a" not in h.finished:
        h.step()
    assert h.tokens["a"] == [14, 15, 16]
    assert (h.stat("running"), h.stat("held"), h.scheduler.busy) == (0, 3, True)  # its row is still in flight
    h.step()
    assert (h.stat("evictable"), h.stat("free"), h.stat("wasted_rows")) == (5, 27, 1)
    assert h.stat("attention_query_rows") == 3 + 3
    books_are_closed(h)


def test_who_ends_by_length_leaves_before_its_last_token_is_known():
    h = Harness(**OVERLAP)
    h.add("a", [1], max_new_tokens=2)
    h.add("b", [50], max_new_tokens=5)
    h.run()
    rows = [len(plan.rows) for plan in h.executor.plans]
    assert rows == [2, 2, 1, 1, 1] and h.stat("wasted_rows") == 0


@pytest.mark.parametrize("after", [1, 2, 3, 4])
@pytest.mark.parametrize("page", [1, 16])
def test_an_abort_in_flight_only_marks_and_the_step_that_is_taken_in_frees(after, page):
    h = Harness(page_size=page, pool_tokens=128, **OVERLAP)
    h.add("a", range(20), max_new_tokens=30)
    h.add("b", range(500, 503), max_new_tokens=8)
    for _ in range(after):
        h.step()
    row = h.scheduler._requests["a"].row
    h.abort("a")
    assert h.finished["a"].reason == "abort"
    assert row not in h.scheduler._pools.table._free and h.stat("held") + h.stat("protected") > 0
    h.step()
    h.step()
    assert row in h.scheduler._pools.table._free  # "pages back within one tick" of the step that used them
    h.run()
    assert h.tokens["b"] == list(range(503, 511))
    books_are_closed(h)


@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_b08_abort_between_pieces(page, after):
    h = Harness(page_size=page, chunk_tokens=32, max_running=1, **OVERLAP)
    h.add("a", range(100), max_new_tokens=8)
    h.add("b", range(500, 540), max_new_tokens=2)
    for _ in range(after):
        h.step()
    h.abort("a")
    assert h.finished["a"].reason == "abort"
    h.run(limit=8)
    assert h.tokens["b"] == [540, 541]
    books_are_closed(h)


def test_what_an_aborted_prompt_computed_stays_cached():
    h = Harness(**OVERLAP)
    h.add("a", range(20), max_new_tokens=4)
    h.step()
    h.abort("a")
    h.run()
    assert h.stat("evictable") == 20


def test_a_flush_after_the_last_abort_waits_for_its_step():
    h = Harness(**OVERLAP)
    h.add("a", range(20), max_new_tokens=4)
    h.step()
    h.abort("a")
    h.send(Flush(id=1))
    assert h.answers[1] == Flushed(id=1, tokens=20)
    assert h.stat("free") == h.stat("pool")


def test_a_step_that_fails_ends_its_requests_and_spoils_nobody_elses():
    def script(history):
        if history[0] == 666:
            raise ZeroDivisionError("boom")
        return count_up(history)

    h = Harness(script=script, **OVERLAP)
    h.add("good", [1], max_new_tokens=3)
    h.run()
    h.add("bad", [666, 1], max_new_tokens=4)
    h.run()
    assert h.finished["bad"].reason == "error"
    h.add("again", [666], max_new_tokens=0)
    h.run()
    assert h.cached["again"] == 0  # nothing that a failed step computed is cached
    assert h.tokens["good"] == [2, 3, 4]
    books_are_closed(h)


def test_a_row_that_fails_in_flight_ends_alone():
    def script(history):
        bad = history[0] == 2 and len(history) == 4
        logits = np.full(600, np.nan if bad else 0.0, dtype=np.float32)
        logits[(history[-1] + 1) % 600] = np.nan if bad else 9.0
        return logits

    h = Harness(script=script, **OVERLAP)
    h.add("bad", [2, 100], max_new_tokens=9)
    h.add("good", [3, 200], max_new_tokens=9)
    h.run()
    assert (h.finished["bad"].reason, h.tokens["bad"]) == ("error", [101, 102])
    assert h.tokens["good"] == list(range(201, 210))
    assert h.stat("wasted_rows") == 1
    books_are_closed(h)


def test_new_requests_are_planned_after_the_prompts_in_flight_are_cached():
    """Two with one prompt, one after the other: the second hits what the first computed, as without overlap."""
    h = Harness(max_prefill_tokens=20, **OVERLAP)
    for rid in "ab":
        h.add(rid, [*range(18), ord(rid)], max_new_tokens=3)
    h.run()
    assert h.cached == {"a": 0, "b": 18}


def test_pieces_of_a_prompt_are_launched_one_behind_the_other():
    h = Order(chunk_tokens=8, **OVERLAP)
    h.add("a", range(24), max_new_tokens=1)
    h.run()
    assert h.events == [
        ("launch", 1),
        ("launch", 2),
        ("result", 1),
        ("launch", 3),
        ("result", 2),
        ("result", 3),
    ]
    assert (h.tokens["a"], h.stat("middle_chunks")) == ([24], 2)


def test_a_middle_piece_that_ends_late_commits_nothing():
    """An abort does not make the pieces in flight look like the end of the prompt."""
    h = Harness(chunk_tokens=8, **OVERLAP)
    h.add("a", range(24), max_new_tokens=4)
    h.step()
    h.step()
    h.abort("a")
    h.add("b", range(24), max_new_tokens=2)
    h.run()
    assert h.tokens == {"a": [], "b": [24, 25]}
    assert h.cached["b"] == 16
    books_are_closed(h)


@pytest.mark.parametrize("page", [1, 16])
def test_duplicates_found_while_a_piece_is_in_flight_are_freed_when_it_is_taken_in(page):
    """a and b compute the same prompt side by side; the slots of the second are read until its step is over."""
    h = Harness(script=digest, page_size=page, chunk_tokens=32, **OVERLAP)
    h.add("a", range(64), max_new_tokens=8)
    h.add("b", range(64), max_new_tokens=8)
    h.run()
    alone = Harness(script=digest)
    alone.add("a", range(64), max_new_tokens=8)
    alone.run()
    assert h.tokens["a"] == h.tokens["b"] == alone.tokens["a"]
    books_are_closed(h)


def test_abandoning_waits_for_the_step_in_flight():
    h = Harness(**OVERLAP)
    h.add("a", range(10), max_new_tokens=5)
    h.step()
    h.step()
    h._note(h.scheduler.abandon("the engine shut down"))
    assert h.finished["a"].problem == "the engine shut down"
    assert not h.scheduler.busy
    books_are_closed(h)


LEAK_HUNT = [
    (page, overlap, mixed, conservativeness)
    for page in (1, 4, 16)
    for overlap in (False, True)
    for mixed, conservativeness in ((False, 1.0), (True, 0.1))
]


@pytest.mark.parametrize(("page", "overlap", "mixed", "conservativeness"), LEAK_HUNT)
def test_x01_a01_leak_hunt(page, overlap, mixed, conservativeness):
    h = Harness(
        script=digest,
        pool_tokens=256,
        page_size=page,
        context_length=128,
        chunk_tokens=32,
        max_running=16,
        overlap=overlap,
        lazy=overlap,
        mixed_chunk=mixed,
        conservativeness=conservativeness,
    )
    aborts, tick, k = {}, 0, 0
    while k < 200 or h.scheduler.busy:
        while k < 200 and k // 3 == tick:
            stem = range(1000 * (k % 10), 1000 * (k % 10) + 7 * k % 25)
            prompt = [*stem, *[50000 + k] * ((11 * k) % 36 + 1)]
            assert h.add(f"r{k}", prompt, max_new_tokens=(5 * k) % 12 + 1).accepted
            if k % 5 == 0:
                aborts.setdefault(tick + k % 7, []).append(f"r{k}")
            k += 1
        for rid in aborts.pop(tick, ()):
            h.abort(rid)
        h.step()  # checks all books
        tick += 1
        assert tick < 3000
    assert len(h.finished) == 200
    books_are_closed(h)
    h.send(Flush(id=1))
    assert h.stat("free") == 256


@pytest.mark.parametrize("mixed", [False, True])
def test_a_mixed_step_computes_prompts_and_decodes(mixed):
    h = Harness(chunk_tokens=8, mixed_chunk=mixed)
    h.add("a", [1], max_new_tokens=8)
    h.step()
    h.add("b", range(100, 120), max_new_tokens=2)
    h.run()
    rows = [[row.q_len for row in plan.rows] for plan in h.executor.plans]
    if mixed:  # a decodes in the steps of b's prompt; its row is charged to both accounts
        assert rows == [[1], [7, 1], [7, 1], [6, 1], [1, 1], [1], [1], [1]]
        assert h.stat("mixed_steps") == 3
    else:
        assert rows[:4] == [[1], [8], [8], [4]]
    assert h.tokens == {"a": list(range(2, 10)), "b": [120, 121]}
