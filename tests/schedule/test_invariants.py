"""What holds in every planning round, over random work; and four inputs whose order and prefill work are known."""

import random

import pytest

from rtk.plugin.testing.harness import Harness, digest
from rtk.schedule.budget import ceil_page, charge

SEEDS = range(4)


def settings_of(rng):
    page = rng.choice([1, 4, 16])
    return {
        "page_size": page,
        "pool_tokens": 16 * rng.randint(8, 20),
        "chunk_tokens": rng.choice([None, 16, 16 + page, 64]),
        "max_prefill_tokens": rng.choice([24, 64, 4096]),
        "mixed_chunk": rng.random() < 0.5,
        "mixed_tokens": rng.choice([None, 6, 30]),
        "conservativeness": rng.choice([0.05, 1.0]),
        "schedule": rng.choice(["fcfs", "lpm", "shortest-prefill-first"]),
        "max_running": rng.randint(2, 8),
    }


def rounds(seed):
    """The rounds of some random work, planned and then made: (harness, plan)."""
    rng = random.Random(seed)
    for run in range(6):
        h = Harness(script=digest, context_length=120, **settings_of(rng))
        for i in range(24):
            stem = [*range(100 * rng.randint(0, 2), 200)][: rng.randint(0, 60)]
            h.add(f"{run}-{i}", [*stem, *[900 + i] * rng.randint(1, 30)], max_new_tokens=rng.randint(0, 20))
            for _ in range(rng.randint(0, 2)):
                yield from one_round(h)
        while h.scheduler.busy:
            yield from one_round(h)


def one_round(h):
    scheduler = h.scheduler
    ctx = scheduler._batches._context()
    if scheduler._batches._may_prefill(ctx):
        plan = scheduler._batches._plan(ctx)
        if plan.attempts:
            yield h, plan
    h.step()


def most_beside(h, plan):
    """The longest piece beside those who decode, where there is such a limit."""
    decoding = len(h.scheduler._running.decoding()) if h.mixed_chunk else 0
    if not decoding or h.mixed_tokens is None:
        return None
    waiting = h.stat("waiting") + (h.scheduler._running.chunked is not None)
    return h.mixed_tokens * max(waiting, decoding) // decoding


def parts(plan):
    return [*([plan.continuation] if plan.continuation else []), *plan.admitted]


@pytest.mark.stepwise
@pytest.mark.parametrize("seed", SEEDS)
class TestEveryRound:
    def test_whoever_is_selected_gets_something(self, seed):
        seen = 0
        for _, plan in rounds(seed):
            assert all(part.extend_len > 0 for part in parts(plan))
            selected = [attempt.selected for attempt in plan.attempts if attempt.verdict == "CONTINUE"]
            assert selected == [part.extend_len for part in parts(plan)] and all(selected)
            seen += len(selected)
        assert seen > 100

    def test_the_end_is_the_prefix_and_what_is_selected(self, seed):
        for _, plan in rounds(seed):
            told = {attempt.rid: attempt for attempt in plan.attempts}
            for part in parts(plan):
                attempt = told[part.request.rid]
                assert part.stop == attempt.prefix + attempt.selected <= part.request.fill_len
                assert attempt.prefix + attempt.candidate == part.request.fill_len
                assert attempt.is_chunked == (part.stop < part.request.fill_len)

    def test_middle_pieces_add_no_output_and_the_last_one_adds_the_first_token(self, seed):
        middle = 0
        for h, plan in rounds(seed):
            before = {part.request: len(part.request.output) for part in parts(plan)}
            h.step()
            for part in parts(plan):
                ends = part.stop == part.request.fill_len and part.request.max_new_tokens > 0
                assert len(part.request.output) - before[part.request] == ends
                middle += part.stop < part.request.fill_len
        assert middle > 5

    def test_a_refused_request_holds_nothing(self, seed):
        seen = 0
        for h, plan in rounds(seed):
            if plan.refused is None:
                continue
            seen += 1
            refused, rows, locks = plan.refused, h.stat("free_rows"), h.stat("protected")
            assert refused not in [part.request for part in parts(plan)]
            assert (refused.row, refused.lease, refused.capacity) == (0, None, 0)
            assert (h.stat("free_rows"), h.stat("protected")) == (rows, locks)
            last = plan.attempts[-1]
            assert (last.rid, last.selected, last.before) == (refused.rid, 0, last.after)
        assert seen > 20

    def test_what_is_computed_stays_within_the_budgets(self, seed):
        for h, plan in rounds(seed):
            pages = [ceil_page(part.extend_len, h.page_size) for part in parts(plan)]
            decoding = len(h.scheduler._running.decoding()) if h.mixed_chunk else 0
            if h.chunk_tokens is None:
                assert sum(pages) <= max(h.page_size, h.max_prefill_tokens - decoding) or len(pages) == 1
            else:
                assert sum(pages) <= max(h.page_size, min(h.chunk_tokens, h.max_prefill_tokens) - decoding)
                assert sum(pages) <= max(h.page_size, most_beside(h, plan) or h.chunk_tokens)

    def test_the_total_balance_counts_what_running_requests_will_need(self, seed):
        for h, plan in rounds(seed):
            pools, running = h.scheduler._pools, h.scheduler._running.requests
            growth = sum(min(r.max_new_tokens - len(r.output), 4096) for r in running if r.launched_len >= r.fill_len)
            total = pools.allocator.free + pools.cache.evictable - h.scheduler._batches.ratio.value * growth
            assert plan.attempts[0].before.total == pytest.approx(total)
            for attempt in plan.attempts:
                request = h.scheduler._requests[attempt.rid]
                if not attempt.selected:
                    continue
                answer = 0 if attempt.is_chunked else request.max_new_tokens - len(request.output)
                locked = attempt.before.current - attempt.after.current - ceil_page(attempt.selected, h.page_size)
                spent = attempt.before.total - attempt.after.total
                assert spent == pytest.approx(charge(attempt.selected, answer, h.page_size) + locked)

    def test_rows_that_decode_beside_prompts_are_charged_once_to_both_budgets(self, seed):
        seen = 0
        for h, plan in rounds(seed):
            before, decoding = plan.attempts[0].before, len(h.scheduler._running.decoding())
            charged = decoding if h.mixed_chunk else 0
            assert before.input_tokens == max(h.page_size, h.max_prefill_tokens - charged)
            if h.chunk_tokens is not None:
                room = h.chunk_tokens - charged
                assert before.chunk_tokens == max(h.page_size, min(room, most_beside(h, plan) or room))
            seen += charged > 0
        assert seen


def work(h):
    """What each step computed of prompts: [(start, stop), ...], without steps that only decode."""
    steps = []
    for plan in h.executor.plans:
        rows = [(row.start, row.start + row.q_len) for row in plan.rows if row.q_len > 1 or row.start == 0]
        steps += [rows] if rows else []
    return steps


POLICIES = ["fcfs", "lpm", "shortest-prefill-first", "hrrn"]


@pytest.mark.parametrize("schedule", POLICIES)
class TestFourInputs:
    def test_one_short_prompt(self, schedule):
        h = Harness(chunk_tokens=32, schedule=schedule)
        h.add("a", range(10), max_new_tokens=3)
        h.run()
        assert (work(h), h.stat("prefill_tokens")) == ([[(0, 10)]], 10)

    def test_one_prompt_of_three_pieces(self, schedule):
        h = Harness(chunk_tokens=32, schedule=schedule)
        h.add("a", range(80), max_new_tokens=3)
        h.run()
        assert (work(h), h.stat("prefill_tokens")) == ([[(0, 32)], [(32, 64)], [(64, 80)]], 80)

    def test_two_prompts_that_share_a_long_prefix(self, schedule):
        """Those that look for it let the second wait for what the first computes; the others compute it twice."""
        h = Harness(schedule=schedule, pool_tokens=512, chunk_tokens=134)
        h.add("a", [*range(60), *[1] * 4], max_new_tokens=3)
        h.add("b", [*range(60), *[2] * 4], max_new_tokens=3)
        h.add("c", [*range(700, 770)], max_new_tokens=3)
        h.run()
        if schedule in ("lpm", "hrrn"):  # c goes before b, which then hits what a computed
            assert (work(h), h.stat("prefill_tokens")) == ([[(0, 64), (0, 70)], [(60, 64)]], 138)
        else:
            assert (work(h), h.stat("prefill_tokens")) == ([[(0, 64), (0, 64), (0, 6)], [(6, 70)]], 198)

    def test_a_long_prompt_that_arrives_while_another_decodes(self, schedule):
        h = Harness(chunk_tokens=32, schedule=schedule)
        h.add("short", [7], max_new_tokens=6)
        h.step()
        h.step()
        h.add("long", range(300, 370), max_new_tokens=2)
        h.run()
        assert work(h) == [[(0, 1)], [(0, 32)], [(32, 64)], [(64, 70)]]
        assert (h.tokens["short"], h.tokens["long"]) == ([8, 9, 10, 11, 12, 13], [370, 371])
