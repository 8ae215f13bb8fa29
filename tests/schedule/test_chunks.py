"""Prompts that are computed piece by piece."""

import json
from pathlib import Path

import pytest

from rtk.cache.key import pack
from rtk.plugin import SchedulePolicy
from rtk.plugin.testing.harness import Harness, digest
from rtk.schedule.messages import NewRequest, Pin
from rtk.schedule.params import SamplingParams

NUMBERS = json.loads((Path(__file__).parents[1] / "data/worked_examples.json").read_text())


class Watched(Harness):
    """Notes the rows of each step: (first position, end, tokens sampled)."""

    def __post_init__(self):
        super().__post_init__()
        self.steps = []
        launch = self.executor.launch

        def noted(plan):
            self.steps.append([(row.start, row.start + row.q_len, row.samples) for row in plan.rows])
            return launch(plan)

        self.executor.launch = noted


def pieces(h):
    return [row for step in h.steps for row in step]


def books_are_closed(h):
    assert h.stat("free") + h.stat("evictable") == h.stat("pool")
    assert h.stat("invariant_violations") == h.stat("commit_failures") == 0
    assert h.stat("attention_query_rows") == h.stat("prefill_tokens") + h.stat("decode_tokens")


def test_three_pieces_of_the_worked_example():
    example = NUMBERS["chunks"]
    h = Watched(pool_tokens=12000, context_length=12000, chunk_tokens=example["chunk"])
    h.add("a", range(example["prompt"]), max_new_tokens=2)
    h.run()
    prefill, [decode] = h.steps[:-1], h.steps[-1]
    assert [[start, end] for [(start, end, _)] in prefill] == example["pieces"]
    assert [samples for [(*_, samples)] in prefill] == [0, 0, 1]
    assert len(prefill) == example["sampled_only_after"]
    assert decode == (10000, 10001, 1)
    assert h.tokens["a"] == [10000, 10001]
    assert (h.stat("middle_chunks"), h.stat("prefill_tokens"), h.stat("decode_tokens")) == (2, 10000, 1)
    books_are_closed(h)


@pytest.mark.parametrize(
    ("page", "chunk", "prefill", "expected"),
    [
        (16, 40, 4096, [(0, 32), (32, 64), (64, 70)]),
        (16, 4096, 40, [(0, 32), (32, 64), (64, 70)]),  # the step's own limit cuts too
        (1, 40, 4096, [(0, 40), (40, 70)]),
        (16, 80, 4096, [(0, 70)]),
        (16, 79, 4096, [(0, 64), (64, 70)]),  # 70 tokens are charged as five pages
        (16, 16, 16, [(0, 16), (16, 32), (32, 48), (48, 64), (64, 70)]),
        (1, None, 40, [(0, 70)]),  # where prompts are not cut, a first one may exceed the step's limit
    ],
)
def test_cuts_are_at_page_borders(page, chunk, prefill, expected):
    h = Watched(page_size=page, chunk_tokens=chunk, max_prefill_tokens=prefill)
    h.add("a", range(70), max_new_tokens=1)
    h.run()
    assert [row[:2] for row in pieces(h)] == expected


@pytest.mark.parametrize(
    ("page", "align", "chunk", "cached", "expected"),
    [
        (1, 24, 40, 0, [(0, 24), (24, 48), (48, 70)]),
        (1, 24, 60, 0, [(0, 48), (48, 70)]),
        (16, 24, 60, 0, [(0, 48), (48, 70)]),  # multiples of both: 48
        (1, 24, 8, 0, [(0, 24), (24, 48), (48, 70)]),  # a piece is never less than what it is cut at
        (1, 24, 40, 20, [(20, 48), (48, 70)]),  # borders are those of the prompt, not of the piece
    ],
)
def test_cuts_are_at_multiples_of_the_alignment(page, align, chunk, cached, expected):
    h = Watched(page_size=page, align_tokens=align, chunk_tokens=chunk)
    if cached:
        h.add("old", range(cached), max_new_tokens=0)
        h.run()
    del h.steps[:]
    h.add("a", range(70), max_new_tokens=1)
    h.run()
    assert [row[:2] for row in pieces(h)] == expected


def test_who_comes_behind_does_not_take_what_is_too_little_for_the_chunked_request():
    """A piece needs 8 slots or the rest of the prompt. The few that are there would suffice for short prompts."""
    h = Watched(
        pool_tokens=64, context_length=64, chunk_tokens=9, align_tokens=8, mixed_chunk=True, conservativeness=0.001
    )
    h.add("a", [1] * 21, max_new_tokens=30)
    h.step()
    h.add("x", range(100, 139), max_new_tokens=1)
    n = 0
    while "x" not in h.finished:
        h.add(f"short{n}", [500 + n], max_new_tokens=1)
        h.step()
        n += 1
        assert n < 40
    h.run()
    assert h.tokens["x"] == [139] and len(h.tokens["a"]) == 30
    assert {finish.reason for finish in h.finished.values()} == {"length"}
    books_are_closed(h)


def test_beside_a_chunked_request_that_lacks_slots_nobody_is_cut():
    h = Watched(pool_tokens=64, context_length=64, chunk_tokens=9, mixed_chunk=True, conservativeness=0.001)
    h.add("a", [1] * 23, max_new_tokens=30)
    h.step()
    h.add("x", range(100, 137), max_new_tokens=1)
    h.add("y", [7] * 12, max_new_tokens=1)
    lacking = []
    while "a" not in h.finished:
        h.step()
        plan = h.scheduler._batches._plan(h.scheduler._batches._context())
        if plan.attempts and plan.attempts[0].rid == "x" and h.scheduler._running.chunked and not plan.continuation:
            lacking.append([(attempt.rid, attempt.verdict, attempt.reason) for attempt in plan.attempts])
    assert lacking and set(map(tuple, lacking)) == {(("x", "NO_TOKEN", "kv"), ("y", "OTHER", "cut"))}


@pytest.mark.parametrize(("mixed", "kept"), [(False, 0), (True, 4)])
def test_slots_for_the_next_tokens_of_those_who_decode_beside_are_not_given_to_prompts(mixed, kept):
    h = Watched(pool_tokens=64, page_size=4, chunk_tokens=32, mixed_chunk=mixed)
    waiting(h, full=8, room=5)
    for request in h.scheduler._queue:
        request.max_new_tokens = 9
    h.step()
    waiting(h, c=4)  # full's next token needs a page, that of the other does not
    [attempt] = h.scheduler._batches._plan(h.scheduler._batches._context()).attempts
    assert attempt.before.current == h.stat("free") + h.stat("evictable") - kept


def test_however_many_decode_beside_a_prompt_gets_on_by_what_it_is_cut_at():
    h = Watched(pool_tokens=256, max_prefill_tokens=4, chunk_tokens=5, align_tokens=2, mixed_chunk=True)
    for i in range(6):
        h.add(f"r{i}", [10 * i], max_new_tokens=20)
        h.step()
    h.add("a", range(100, 105), max_new_tokens=1)
    del h.steps[:]
    for _ in range(3):
        h.step()
    assert [step[0][:2] for step in h.steps] == [(0, 2), (2, 4), (4, 5)]
    assert [len(step) for step in h.steps] == [7, 7, 7]


@pytest.mark.parametrize(
    ("waiting", "pieces"),
    [
        (1, [8, 8, 8]),
        (2, [8, 8, 8]),
        (3, [12, 12, 12]),  # 8 * 3 / 2
        (5, [20, 20, 10]),  # 8 * 5 / 2; then the first of them decodes too: 8 * 4 / 3
        (9, [26, 26, 21]),  # 28 less the two that decode; then 8 * 8 / 3
    ],
)
def test_beside_those_who_decode_pieces_are_short_unless_more_wait(waiting, pieces):
    """Prompts of 40 tokens each; `pieces`: of the first three steps."""
    h = Watched(pool_tokens=1024, max_running=16, chunk_tokens=28, mixed_chunk=True, mixed_tokens=8)
    for i in range(2):
        h.add(f"d{i}", [i], max_new_tokens=40)
    h.step()
    for i in range(waiting):
        h.add(f"w{i}", [1000 * (i + 1)] * 40, max_new_tokens=40)
    del h.steps[:]
    for _ in range(3):
        h.step()
    assert [sum(stop - start for start, stop, _ in step if stop - start > 1) for step in h.steps] == pieces


def test_where_nobody_decodes_or_steps_are_not_mixed_pieces_are_as_long_as_they_may_be():
    for mixed, first, second in ((True, (0, 28), (28, 40)), (False, (0, 28), (28, 40))):
        h = Watched(pool_tokens=512, chunk_tokens=28, mixed_chunk=mixed, mixed_tokens=8)
        h.add("a", [7] * 40, max_new_tokens=2)
        h.run()
        assert [row[:2] for row in pieces(h)[:2]] == [first, second]


def waiting(h, **lengths):
    """Requests of these prompt lengths, each with tokens of its own."""
    for i, (rid, length) in enumerate(lengths.items()):
        new = NewRequest(
            rid=rid, tokens=pack([1000 * (i + 1)] * length), params=SamplingParams(temperature=0.0, max_new_tokens=1)
        )
        h.scheduler.receive([new])


def test_others_join_whole_beside_a_cut_one_and_one_is_cut_at_a_time():
    h = Watched(pool_tokens=512, chunk_tokens=32)
    waiting(h, a=12, b=70, c=10, d=30)
    h.run()
    assert [[row[:2] for row in step] for step in h.steps] == [
        [(0, 12), (0, 20)],  # b is cut; c would fit only in part
        [(20, 52)],
        [(52, 70), (0, 10), (0, 4)],  # the rest of b, c whole, and d is the one that is cut
        [(4, 30)],
    ]
    books_are_closed(h)


def test_the_chunked_request_goes_first_and_nobody_decodes_until_its_prompt_is_done():
    h = Watched(pool_tokens=512, chunk_tokens=16)
    h.add("short", [7], max_new_tokens=3)
    h.step()
    h.add("long", range(40), max_new_tokens=2)
    h.run()
    assert h.steps == [[(0, 1, 1)], [(0, 16, 0)], [(16, 32, 0)], [(32, 40, 1)], [(1, 2, 1), (40, 41, 1)], [(2, 3, 1)]]
    assert h.tokens == {"short": [8, 9, 10], "long": [40, 41]}


class DecodesFirst(SchedulePolicy):
    def rank(self, columns, ctx):
        return (columns.id,)

    def prefer_decode(self, ctx):
        return True


def test_a_policy_that_prefers_decoding_holds_the_chunked_request_up_only_beside_others():
    h = Watched(pool_tokens=512, chunk_tokens=16, schedule=DecodesFirst())
    h.add("short", [7], max_new_tokens=4)
    h.add("long", range(40), max_new_tokens=1)
    h.step()
    assert h.steps == [[(0, 1, 1), (0, 15, 0)]]
    h.run()
    assert h.steps[1:] == [[(1, 2, 1)], [(2, 3, 1)], [(3, 4, 1)], [(15, 31, 0)], [(31, 40, 1)]]


@pytest.mark.stepwise
@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_b08_abort_between_pieces_gives_everything_back(page, after):
    h = Harness(page_size=page, chunk_tokens=32, max_running=1)
    h.add("a", range(100), max_new_tokens=8)
    h.add("b", range(500, 540), max_new_tokens=2)
    for _ in range(after):
        h.step()
    h.abort("a")
    assert h.finished["a"].reason == "abort"
    assert h.stat("held") == h.stat("protected") == 0
    assert h.scheduler._running.chunked is None
    h.step()
    assert h.stat("running") == 1
    h.run()
    assert h.tokens["b"] == [540, 541]
    books_are_closed(h)


@pytest.mark.parametrize("page", [1, 16])
def test_b09_pieces_without_a_cache(page):
    said = []
    for enabled in (True, False):
        h = Harness(script=digest, page_size=page, chunk_tokens=32, cache_enabled=enabled)
        h.add("a", range(100), max_new_tokens=8)
        h.run()
        books_are_closed(h)
        said.append(h.tokens["a"])
    assert said[0] == said[1]


@pytest.mark.parametrize("page", [1, 16])
def test_a07_twins_in_pieces_share_slots_and_answers(page):
    alone = Harness(script=digest, page_size=page, chunk_tokens=32)
    alone.add("a", range(64), max_new_tokens=8)
    alone.run()
    h = Harness(script=digest, page_size=page, chunk_tokens=32)
    for rid in ("a", "b"):
        h.add(rid, range(64), max_new_tokens=8)
    for _ in range(3):
        h.step()
    h.add("c", range(300, 364), max_new_tokens=8)  # takes what was freed
    h.run()
    assert h.tokens["a"] == h.tokens["b"] == alone.tokens["a"]
    assert h.cached["b"] >= 32
    books_are_closed(h)


@pytest.mark.stepwise
def test_a_middle_piece_is_cached_at_once():
    h = Harness(chunk_tokens=32)
    h.add("a", range(100), max_new_tokens=1)
    h.step()
    assert h.stat("protected") == 32
    h.abort("a")
    assert h.stat("evictable") == 32
    h.add("b", range(50), max_new_tokens=1)
    h.run()
    assert h.cached["b"] == 32


def test_a_request_that_generates_nothing_and_a_pin_in_pieces():
    h = Watched(pool_tokens=512, chunk_tokens=32)
    h.add("a", range(40), max_new_tokens=0)
    h.send(Pin(id=1, name="p", tokens=pack(range(500, 540))))
    h.run()
    assert (h.tokens["a"], h.finished["a"].reason) == ([], "length")
    assert h.answers[1].pin.tokens == 40
    assert h.stat("protected") == h.stat("pinned") == 40


@pytest.mark.stepwise
def test_a_step_that_fails_in_the_middle_of_a_prompt_ends_it_alone():
    h = Harness(chunk_tokens=32, max_running=1)
    h.add("a", range(100), max_new_tokens=2)
    h.add("b", [7], max_new_tokens=2)
    h.step()
    launch, h.executor.launch = h.executor.launch, lambda plan: 1 / 0
    h.step()
    h.executor.launch = launch
    assert h.finished["a"].reason == "error"
    h.run()
    assert h.tokens["b"] == [8, 9]
    books_are_closed(h)


@pytest.mark.parametrize("page", [1, 4])
def test_a_commit_that_fails_beside_the_chunked_request_leaves_the_books_right(page, monkeypatch):
    for k in range(12):
        h = Harness(page_size=page, pool_tokens=256, chunk_tokens=24)
        h.add("long", range(60), max_new_tokens=3)
        h.step()
        for i in range(3):
            h.add(f"r{i}", [1000 * (i + 1)] * 4, max_new_tokens=3)
        allocator, calls = h.scheduler._pools.allocator, [0]

        def failing(pages, alloc=allocator.alloc, calls=calls, k=k):
            calls[0] += 1
            if calls[0] == k + 1:
                raise MemoryError("no slots")
            return alloc(pages)

        monkeypatch.setattr(allocator, "alloc", failing)
        h.run()  # checks the books after each step
        errors = [rid for rid, finish in h.finished.items() if finish.reason == "error"]
        assert len(errors) <= 1
        assert len(h.finished) == 4
        assert h.stat("free") + h.stat("evictable") == h.stat("pool")
