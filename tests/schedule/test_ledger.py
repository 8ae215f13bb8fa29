"""The ledger of scheduling: what it tells of each request, exactly, and what it costs to remember."""

import pickle
import random

import msgspec
import pytest

from rtk.cache.key import DEFAULT_NAMESPACE, Key, pack
from rtk.plugin.schedule import SchedulePolicy
from rtk.plugin.testing.harness import Harness
from rtk.schedule.admission import Attempt, Balances
from rtk.schedule.ledger import FINISHED, NAMED, RECENT, Ledger, Prefill
from rtk.schedule.ledger_clocks import NOTES, PREFILLS, STARTS
from rtk.schedule.ledger_entry import CHUNKS, RETRACTIONS
from rtk.schedule.messages import ExplainRequest, Finish, Refused, RequestExplained
from rtk.schedule.params import SamplingParams
from rtk.schedule.request import Request
from rtk.schedule.timeline import (
    Accounts,
    AttemptRecord,
    Attempts,
    Behind,
    Chunk,
    Decoding,
    FirstToken,
    Gap,
    Overtaken,
    Retraction,
    Timeline,
    Wait,
)

pytestmark = pytest.mark.stepwise

BEFORE, AFTER = Balances(100, 60.5, 64, 32, 3), Balances(90, 46.5, 54, 22, 2)


def request(rid, prompt=10, new=4):
    return Request(
        rid=rid, id=0, prompt_len=prompt, tokens=bytearray(pack([1] * prompt)), params=SamplingParams(),
        key=Key(DEFAULT_NAMESPACE, pack([1] * prompt)), priority=0, max_new_tokens=new, seed=0, arrival_s=0.0,
        prefilled_at_arrival=0, stop_token_ids=frozenset(),
    )  # fmt: skip


def attempt(rid, reason="", *, prefix=0, candidate=10, selected=None, charge=14):
    selected = (0 if reason else candidate) if selected is None else selected
    verdict = {"": "CONTINUE", "kv": "NO_TOKEN"}.get(reason, "OTHER")
    return Attempt(rid, prefix, candidate, selected, charge, 2, BEFORE, AFTER if selected else BEFORE, verdict, reason)


class Told:
    """A ledger that is told of steps which take no time by themselves: the test moves the clock."""

    def __init__(self, **options):
        self.ledger, self.now, self.step = Ledger(**options), 0.0, 0
        self.requests = {}

    def arrive(self, rid, prompt=10, new=4, name=None):
        self.requests[rid] = request(rid, prompt, new)
        self.ledger.arrived(self.requests[rid], rid if name is None else name, self.now)

    def plan(self, *attempts, **more):
        more["held"] = [self.requests[rid] for rid in more.get("held", ())]
        self.ledger.planned(self.step + 1, attempts, 0.7, self.now, **more)

    def launch(self, *pieces, decoding=0):
        self.step += 1
        prefills = [Prefill(self.requests[rid], start, stop) for rid, start, stop in pieces]
        self.ledger.launched(self.step, prefills, decoding, self.now)
        return self.step

    def run(self, seconds, *pieces, decoding=0, sampled=()):
        """A step: `sampled` get a token each."""
        step = self.launch(*pieces, decoding=decoding)
        self.now += seconds
        self.ledger.retired(step, self.now)
        for rid in sampled:
            self.requests[rid].append(7)

    def retract(self, rid, *for_rids, why="memory"):
        self.ledger.retracted(self.requests[rid], why, for_rids, self.step + 1, self.now)
        self.requests[rid].step_back()

    def end(self, rid, reason="length"):
        self.ledger.ended(self.requests[rid], Finish(reason=reason), self.now)

    def of(self, name):
        return self.ledger.timeline(name, self.now)


# --- the whole of it --------------------------------------------------------------------------------------------


def test_one_request():
    t = Told()
    t.now = 100.0
    t.arrive("7:story", name="story")
    t.now = 101.0
    t.plan(attempt("7:story", "kv"))
    t.now = 103.0
    t.plan(attempt("7:story", prefix=4, candidate=6))
    t.run(0.5, ("7:story", 4, 10), sampled=["7:story"])
    t.run(0.25, decoding=1, sampled=["7:story"])
    t.run(0.75, decoding=1, sampled=["7:story"])
    t.end("7:story", "stop")
    refused = AttemptRecord(
        rid="story", step=1, time=1.0, rho=0.7, prefix=0, candidate=10, selected=0, is_chunked=False, charge=14,
        locked=2, before=Accounts(100, 60.5, 64, 32, 3), after=Accounts(100, 60.5, 64, 32, 3), verdict="NO_TOKEN",
        reason="kv",
    )  # fmt: skip
    admitted = AttemptRecord(
        rid="story", step=1, time=3.0, rho=0.7, prefix=4, candidate=6, selected=6, is_chunked=False, charge=14,
        locked=2, before=Accounts(100, 60.5, 64, 32, 3), after=Accounts(90, 46.5, 54, 22, 2), verdict="CONTINUE",
    )  # fmt: skip
    assert t.of("story") == Timeline(
        rid="story",
        state="finished",
        age_s=4.5,
        end="stop",
        problem="",
        prompt_tokens=10,
        output_tokens=3,
        waiting_at_arrival=0,
        started_s=3.0,
        cached_tokens=4,
        queue_s=3.0,
        waits=(Wait("kv", 2.0), Wait("step", 1.0)),
        behind=None,
        overtaken=Overtaken(0, 0, True),
        notes=(),
        attempts=(
            Attempts(reason="kv", count=1, first=refused, last=refused),
            Attempts(reason="", count=1, first=admitted, last=admitted),
        ),
        chunks=(Chunk(1, 4, 10, 3.5, 0.5, 0, 0, 0),),
        chunk_count=1,
        forward_s=0.5,
        first_token=FirstToken(3.5, 3.0, 0.5, 0.0),
        decoding=Decoding(
            seconds=1.0, steps=2, prefill_steps=0, prefill_s=0.0, prefill_tokens=0, mixed_steps=0, mixed_s=0.0,
            mixed_tokens=0, gap=Gap(0.75, 4.5, False, 0, 0, 0.0, False, ""),
        ),
        retractions=(),
        retraction_count=0,
    )  # fmt: skip


def test_the_attempts_of_all_are_records_with_the_schedulers_own_ids_and_clock():
    t = Told()
    t.now = 50.0
    t.arrive("1:a", name="a")
    t.arrive("2:b", name="b")
    t.plan(attempt("1:a", selected=6), attempt("2:b", "cut"))
    records = t.ledger.attempts()
    assert [(r.rid, r.time, r.selected, r.is_chunked, r.verdict, r.reason) for r in records] == [
        ("1:a", 50.0, 6, True, "CONTINUE", ""),
        ("2:b", 50.0, 0, False, "OTHER", "cut"),
    ]
    for _ in range(RECENT + 10):
        t.plan(attempt("2:b", "kv"))
        t.plan()  # nobody was looked at: nothing to remember
    assert [r.rid for r in t.ledger.attempts()] == ["2:b"] * RECENT


def test_json_holds_every_field_by_its_name():
    t = Told()
    t.arrive("a")
    t.plan(attempt("a", "rows"))
    told = msgspec.json.decode(msgspec.json.encode(t.of("a")))
    assert tuple(told) == Timeline.__struct_fields__
    assert told["attempts"][0]["last"]["before"] == {
        "current": 100, "total": 60.5, "input_tokens": 64, "chunk_tokens": 32, "rows": 3,
    }  # fmt: skip


# --- the queue --------------------------------------------------------------------------------------------------


def waits(timeline):
    return {wait.cause: wait.seconds for wait in timeline.waits}


def test_what_it_waits_for_is_what_planning_stopped_at():
    t = Told()
    t.arrive("a")
    t.now = 1.0
    t.arrive("b")
    t.now = 2.0
    t.plan(attempt("a", "rows"))
    t.now = 5.0
    t.plan(gate="decode")
    t.now = 6.0
    t.plan(attempt("a"), attempt("b", "input"))
    t.launch(("a", 0, 10))
    assert waits(t.of("a")) == {"step": 2.0, "rows": 3.0, "decode": 1.0}
    assert waits(t.of("b")) == {"step": 1.0, "rows": 3.0, "decode": 1.0}
    t.now = 10.0
    assert waits(t.of("b")) == {"step": 1.0, "rows": 3.0, "decode": 1.0, "input": 4.0}
    t.plan(attempt("b"))
    t.now = 10.5
    t.launch(("b", 0, 10))
    t.now = 20.0
    assert waits(t.of("a")) == {"step": 2.0, "rows": 3.0, "decode": 1.0}
    assert waits(t.of("b")) == {"step": 1.5, "rows": 3.0, "decode": 1.0, "input": 4.0}
    assert [wait.cause for wait in t.of("b").waits] == ["input", "rows", "step", "decode"]
    assert (t.of("b").queue_s, t.of("b").started_s) == (9.5, 9.5)


def test_who_is_held_waits_for_that():
    t = Told()
    for rid in "abc":
        t.arrive(rid)
    t.plan(attempt("b", "kv"), held=["a"])
    t.now = 3.0
    assert [waits(t.of(rid)) for rid in "abc"] == [{"hold": 3.0}, {"kv": 3.0}, {"kv": 3.0}]
    t.plan(attempt("b"), held=["a", "c"])
    t.launch(("b", 0, 10))
    t.now = 4.0
    t.plan(gate="decode")
    t.now = 6.0
    t.plan(attempt("a", "rows"))
    t.now = 9.0
    t.plan(attempt("a"), attempt("c"))
    t.launch(("a", 0, 10), ("c", 0, 10))
    assert [waits(t.of(rid)) for rid in "abc"] == [
        {"hold": 4.0, "decode": 2.0, "rows": 3.0},
        {"kv": 3.0},
        {"kv": 3.0, "hold": 1.0, "decode": 2.0, "rows": 3.0},
    ]


def test_an_end_while_it_is_held():
    t = Told()
    t.arrive("a")
    t.plan(held=["a"])
    t.now = 1.0
    t.end("a", "abort")
    t.now = 2.0
    t.plan()
    assert (waits(t.of("a")), t.of("a").age_s) == ({"hold": 1.0}, 1.0)


def test_who_is_started_before_any_round_waits_no_more():
    t = Told()
    t.arrive("a")
    t.now = 1.0
    t.launch(("a", 0, 10))
    t.now = 3.0
    t.plan(gate="rows")
    t.now = 9.0
    t.plan()
    assert (waits(t.of("a")), t.of("a").queue_s) == ({"step": 1.0}, 1.0)


def test_the_full_batch_may_be_the_first_thing_that_is_known():
    t = Told()
    t.arrive("a")
    t.plan(gate="kv")
    t.now = 2.0
    assert (waits(t.of("a")), t.of("a").behind) == ({"kv": 2.0}, None)


def test_an_end_in_the_queue():
    t = Told()
    t.arrive("a")
    t.plan(attempt("a", "kv"))
    t.now = 2.0
    t.end("a", "abort")
    told = t.of("a")
    assert (told.state, told.end, told.started_s, waits(told), told.queue_s) == (
        "finished", "abort", None, {"kv": 2.0}, 2.0,
    )  # fmt: skip
    assert (told.first_token, told.decoding, told.chunks) == (None, None, ())
    t.arrive("b")
    t.arrive("c")
    assert [t.of(rid).waiting_at_arrival for rid in "bc"] == [0, 1]


def test_whom_it_stood_behind():
    t = Told()
    t.arrive("1:big", name="big")
    t.arrive("2:long", name="long")
    t.arrive("3:me", name="me")
    t.plan(attempt("1:big", "kv"))
    t.now = 2.0
    t.plan(gate="kv")  # nothing has come back since
    t.now = 5.0
    t.plan(attempt("1:big"), attempt("2:long", selected=4), attempt("3:me", "cut"))
    t.launch(("1:big", 0, 10), ("2:long", 0, 4))
    t.now = 9.0
    t.plan(attempt("3:me", "kv"))
    t.now = 20.0
    assert t.of("me").behind == Behind("big", "kv", 5.0)
    assert t.of("long").behind == Behind("big", "kv", 5.0)
    assert t.of("big").behind is None
    t.plan(attempt("3:me"))
    t.launch(("3:me", 0, 10))
    t.end("1:big")
    assert t.of("me").behind == Behind("big", "kv", 5.0)


@pytest.mark.parametrize(("first", "again", "behind"), [(2.0, 5.0, "late"), (5.0, 2.0, "early")])
def test_of_two_waits_whom_it_stood_behind_longest(first, again, behind):
    t = Told()
    t.now = 7.0
    for rid in ("early", "me"):
        t.arrive(rid)
    t.plan(attempt("early", "kv"))
    t.now += first
    t.plan(attempt("me"))
    t.run(1.0, ("me", 0, 10), sampled=["me"])
    t.arrive("late")
    t.retract("me", "early")
    t.plan(attempt("late", "rows"))
    t.now += again
    t.plan(attempt("me"))
    t.launch(("me", 0, 11))
    assert t.of("me").behind == Behind(behind, "rows" if behind == "late" else "kv", 5.0)


def test_behind_a_prompt_that_is_cut_is_behind_its_request():
    t = Told()
    t.arrive("long")
    t.arrive("me")
    t.plan(attempt("long", selected=4), attempt("me", "cut"))
    t.launch(("long", 0, 4))
    t.now = 3.0
    assert t.of("me").behind == Behind("long", "cut", 3.0)


def test_who_came_later_and_started_first():
    t = Told()
    for rid in ("me", "x", "y", "z"):
        t.arrive(rid, prompt=20)
    t.launch(("x", 5, 20))
    assert t.of("me").overtaken == Overtaken(1, 15, True)
    assert t.of("z").overtaken == Overtaken(0, 0, True)
    t.launch(("z", 0, 20))
    t.end("y", "abort")
    t.launch(("me", 0, 20))
    t.arrive("late")
    t.launch(("late", 0, 10))
    assert t.of("me").overtaken == Overtaken(2, 35, True)
    assert t.of("x").overtaken == t.of("z").overtaken == Overtaken(0, 0, True)


def test_more_starts_than_are_remembered():
    t = Told()
    t.arrive("me")
    for i in range(STARTS + 1):
        t.arrive(f"{i}", prompt=2)
        t.launch((f"{i}", 0, 2))
        t.ledger.retired(t.step, t.now)
    assert t.of("me").overtaken == Overtaken(STARTS, 2 * STARTS, False)


def test_what_the_policy_said_while_it_waited():
    t = Told()
    t.arrive("a")
    t.plan(attempt("a", "kv"), note="one")
    t.arrive("b")
    t.plan(attempt("a", "kv"), note="two")
    t.plan(attempt("a"), note="one")
    t.launch(("a", 0, 10))
    t.plan(note="three")
    assert t.of("a").notes == ("two", "one")
    assert t.of("b").notes == ("two", "one", "three")
    for i in range(2 * NOTES):
        t.plan(note=f"{i}")
    assert t.of("b").notes == ("4", "5", "6", "7")
    t.run(1.0, ("b", 0, 10))
    for i in range(NOTES - 1):  # as many retractions do not make more of it
        t.retract("b")
        t.plan(note=f"again {i}")
        t.run(1.0, ("b", 0, 10))
    assert t.of("b").notes == ("7", "again 0", "again 1", "again 2")


def test_attempts_that_end_alike_are_counted():
    t = Told()
    t.arrive("a")
    for i in range(1000):
        t.now = float(i)
        t.plan(attempt("a", "kv" if i % 2 else "rows"))
    rows, kv = t.of("a").attempts
    assert (rows.reason, rows.count, rows.first.time, rows.last.time) == ("rows", 500, 0.0, 998.0)
    assert (kv.reason, kv.count, kv.first.time, kv.last.time) == ("kv", 500, 1.0, 999.0)


# --- pieces and tokens --------------------------------------------------------------------------------------------


def test_pieces_and_what_was_between_and_beside_them():
    t = Told()
    t.arrive("a", prompt=30)
    t.arrive("b", prompt=6)
    t.run(1.0, ("b", 0, 6), sampled=["b"])
    t.run(2.0, ("a", 0, 10), decoding=1, sampled=["b"])
    t.run(0.5, decoding=1, sampled=["b"])
    t.run(0.5, decoding=1, sampled=["b"])
    t.arrive("c", prompt=5)
    t.run(4.0, ("a", 10, 20), ("c", 0, 5), decoding=1)
    t.run(1.0, ("a", 20, 30), sampled=["a"])
    told = t.of("a")
    assert told.chunks == (
        Chunk(2, 0, 10, 3.0, 2.0, 0, 0, 1),
        Chunk(5, 10, 20, 8.0, 4.0, 2, 5, 1),
        Chunk(6, 20, 30, 9.0, 1.0, 0, 0, 0),
    )
    assert told.first_token == FirstToken(9.0, 1.0, 7.0, 1.0)
    assert (told.forward_s, told.chunk_count, told.state) == (7.0, 3, "running")


def test_what_decoded_before_it_was_started_is_between_nothing():
    t = Told()
    t.run(1.0, decoding=1)
    t.arrive("a", prompt=20)
    t.run(1.0, decoding=1)
    t.run(1.0, ("a", 0, 10))
    t.run(1.0, decoding=1)
    t.run(1.0, ("a", 10, 20))
    assert [chunk.decode_steps for chunk in t.of("a").chunks] == [0, 1]


def test_equal_gaps_are_kept_once():
    t = Told()
    t.arrive("a")
    t.run(1.0, ("a", 0, 10), sampled=["a"])
    for _ in range(9):
        t.run(1.0, decoding=1)
    assert [gap.seconds for _, gap in t.ledger._steps._gaps] == [2.0, 1.0]  # the first is from before it came


def test_of_many_pieces_the_first_and_the_last_are_kept():
    t = Told()
    t.arrive("a", prompt=100)
    for i in range(100):
        t.run(1.0, ("a", i, i + 1))
    told = t.of("a")
    assert (told.chunk_count, told.forward_s) == (100, 100.0)
    assert [chunk.start for chunk in told.chunks] == [*range(CHUNKS), *range(100 - CHUNKS, 100)]


def test_steps_that_overlap_are_not_counted_twice():
    t = Told()
    t.arrive("a")
    first = t.launch(("a", 0, 10))
    t.now = 1.0
    second = t.launch(decoding=1)
    t.now = 3.0
    t.ledger.retired(first, t.now)
    t.requests["a"].append(7)
    t.now = 3.5
    third = t.launch(decoding=1)
    t.now = 4.0
    t.ledger.retired(second, t.now)
    t.now = 7.0
    t.ledger.retired(third, t.now)
    told = t.of("a")
    assert told.forward_s == 3.0
    assert (told.decoding.steps, told.decoding.seconds, told.decoding.gap.seconds) == (2, 4.0, 3.0)


def test_other_prompts_while_it_decodes():
    t = Told()
    for rid, prompt in (("a", 4), ("b", 50), ("c", 60), ("d", 70)):
        t.arrive(rid, prompt=prompt)
    t.run(1.0, ("a", 0, 4), sampled=["a"])
    t.run(1.0, decoding=1, sampled=["a"])
    t.run(4.0, ("b", 0, 50), sampled=["b"])
    t.run(5.0, ("c", 20, 60), decoding=2, sampled=["a", "b", "c"])
    t.run(1.0, decoding=3, sampled=["a", "b", "c"])
    told = t.of("a").decoding
    assert told == Decoding(
        seconds=11.0, steps=3, prefill_steps=1, prefill_s=4.0, prefill_tokens=50, mixed_steps=1, mixed_s=5.0,
        mixed_tokens=40, gap=Gap(9.0, 11.0, False, 0, 90, 4.0, True, "b"),
    )  # fmt: skip
    # what was computed before its own first token is no wait of its own
    assert t.of("b").decoding.gap == Gap(5.0, 11.0, False, 0, 40, 0.0, True, "c")
    assert t.of("c").decoding.gap == Gap(1.0, 12.0, False, 0, 0, 0.0, False, "")
    t.run(2.0, ("d", 0, 70), sampled=["d"])
    t.end("c")
    t.run(3.0, decoding=3, sampled=["a", "b", "d"])
    assert t.of("b").decoding.gap == Gap(5.0, 11.0, False, 0, 40, 0.0, True, "c")
    assert t.of("b").decoding.prefill_tokens == 70
    assert t.of("c").decoding.gap == Gap(1.0, 12.0, False, 0, 0, 0.0, False, "")


def test_the_longest_gap_is_that_of_its_own_time():
    rng = random.Random(0)
    t = Told()
    alive, longest = {}, {}
    for i in range(300):
        rid = f"{i}"
        t.arrive(rid)
        t.run(0.0, (rid, 0, 10), sampled=[rid])
        alive[rid] = []
        seconds = rng.randrange(1, 1000) / 8
        t.run(seconds, decoding=len(alive))
        for gaps in alive.values():
            gaps.append(seconds)
        for gone in [rid for rid in alive if rng.random() < 0.2]:
            longest[gone] = max(alive.pop(gone))
            t.end(gone)
    assert {rid: t.of(rid).decoding.gap.seconds for rid in longest} == longest
    assert {rid: t.of(rid).decoding.gap.seconds for rid in alive} == {rid: max(gaps) for rid, gaps in alive.items()}


def test_whose_prompt_filled_a_gap_is_known_after_any_number_of_them():
    t = Told()
    t.arrive("a")
    t.run(1.0, ("a", 0, 10), sampled=["a"])
    for i in range(3 * PREFILLS):
        t.arrive(f"{i}", prompt=5 + i)
        t.run(1.0, (f"{i}", 0, 5 + i))
        t.run(1.0 + i, decoding=1)
    assert t.of("a").decoding.gap.prefill_by == f"{3 * PREFILLS - 1}"
    for i in range(2 * PREFILLS):
        t.run(1.0, (f"{i}", 0, i))
    t.run(1000.0, decoding=1)
    assert t.of("a").decoding.gap.prefill_by == f"{PREFILLS - 1}"  # of the first so many


def test_a_gap_was_most_for_whom_its_pieces_together_were():
    t = Told()
    t.arrive("a")
    t.run(1.0, ("a", 0, 10), sampled=["a"])
    for rid, prompt in (("whole", 8), ("cut", 12)):
        t.arrive(rid, prompt=prompt)
    t.run(1.0, ("whole", 0, 8), ("cut", 0, 5))
    t.run(1.0, ("cut", 5, 12))
    t.run(1.0, decoding=1)
    assert t.of("a").decoding.gap == Gap(3.0, 4.0, False, 0, 20, 2.0, False, "cut")


def test_a_step_that_failed_makes_no_first_token():
    t = Told()
    t.arrive("a")
    t.run(1.0, ("a", 0, 10))
    t.end("a", "error")
    assert (t.of("a").first_token, t.of("a").decoding, t.of("a").chunk_count) == (None, None, 1)


def test_a_request_that_generates_nothing_never_decodes():
    t = Told()
    t.arrive("a", new=0)
    t.run(1.0, ("a", 0, 10))
    t.run(1.0, decoding=3)
    assert (t.of("a").first_token, t.of("a").decoding) == (None, None)


def test_who_ended_while_in_flight_gets_no_piece_more():
    t = Told()
    t.arrive("a", prompt=20)
    t.launch(("a", 0, 10))
    t.end("a", "abort")
    t.arrive("a", prompt=20)
    t.ledger.retired(1, 1.0)
    assert t.of("a").chunk_count == 0


# --- retraction -------------------------------------------------------------------------------------------------


def test_a_retraction():
    t = Told()
    t.now = 64.0
    for rid in "abc":
        t.arrive(f"1:{rid}", name=rid)
    t.run(1.0, *((f"1:{rid}", 0, 10) for rid in "abc"), sampled=["1:a", "1:b", "1:c"])
    t.run(1.0, decoding=3, sampled=["1:a", "1:b", "1:c"])
    t.now = 66.5
    t.retract("1:a", "1:b", "1:c")
    waiting = t.of("a")
    t.arrive("behind it")
    assert t.of("behind it").waiting_at_arrival == 1
    assert waiting.retractions == (
        Retraction(step=3, after_s=2.5, why="memory", made_room_for=("b", "c"), others=0, output_tokens=2),
    )
    assert (waiting.state, waiting.started_s, waiting.cached_tokens) == ("waiting", 0.0, 0)
    t.run(1.5, decoding=2, sampled=["1:b", "1:c"])
    t.plan(attempt("1:a", "kv"))
    t.run(1.0, decoding=2, sampled=["1:b", "1:c"])
    t.plan(attempt("1:a", prefix=8, candidate=4))
    t.run(2.0, ("1:a", 8, 12), sampled=["1:a"])
    t.run(1.0, decoding=3)
    told = t.of("a")
    assert told.retractions == (
        Retraction(
            step=3, after_s=2.5, why="memory", made_room_for=("b", "c"), others=0, output_tokens=2, again_s=5.0,
            cached_tokens=8,
        ),
    )  # fmt: skip
    assert (waits(told), told.queue_s, told.cached_tokens, told.started_s) == ({"step": 1.5, "kv": 1.0}, 2.5, 0, 0.0)
    assert [(chunk.start, chunk.stop) for chunk in told.chunks] == [(0, 10), (8, 12)]
    assert told.first_token == FirstToken(1.0, 0.0, 1.0, 0.0)
    # from the token at 2.0 to the one at 7.0
    assert told.decoding.gap == Gap(5.0, 7.0, True, 0, 0, 0.0, False, "")
    assert (told.decoding.seconds, told.decoding.steps) == (2.5, 2)
    # the others waited for its prompt, and it was retracted meanwhile
    assert t.of("b").decoding.gap == Gap(3.0, 8.0, False, 0, 4, 2.0, False, "a")
    assert t.of("b").decoding.prefill_tokens == 4
    assert t.of("b").overtaken == Overtaken(0, 0, True)


def test_a_retraction_of_others_is_part_of_a_gap():
    t = Told()
    t.arrive("a")
    t.arrive("b")
    t.run(1.0, ("a", 0, 10), ("b", 0, 10), sampled=["a", "b"])
    t.run(1.0, decoding=2)
    t.retract("b", "vip", why="preempted")
    t.run(3.0, decoding=1)
    t.end("b", "abort")
    assert t.of("a").decoding.gap == Gap(3.0, 5.0, False, 1, 0, 0.0, False, "")
    told = t.of("b")
    assert told.retractions == (
        Retraction(step=3, after_s=2.0, why="preempted", made_room_for=("vip",), others=0, output_tokens=1),
    )
    assert (told.queue_s, told.decoding.seconds, told.age_s) == (3.0, 1.0, 5.0)


def test_a_retraction_before_the_first_token_waits_for_it():
    t = Told()
    t.arrive("a", prompt=20)
    t.run(1.0, ("a", 0, 10))
    t.retract("a", "b")
    t.now = 4.0
    t.run(2.0, ("a", 10, 20), sampled=["a"])
    assert t.of("a").first_token == FirstToken(6.0, 3.0, 3.0, 0.0)
    t.run(1.0, decoding=1)
    assert t.of("a").decoding.gap == Gap(1.0, 7.0, False, 0, 0, 0.0, False, "")


def test_of_many_retractions_and_names_the_first_and_the_last_are_kept():
    t = Told()
    t.arrive("a")
    for _ in range(20):
        t.run(1.0, ("a", 0, 10), sampled=["a"])
        t.retract("a", *(f"{i}" for i in range(NAMED + 3)))
    told = t.of("a")
    assert (told.retraction_count, len(told.retractions)) == (20, 2 * RETRACTIONS)
    assert [r.after_s for r in told.retractions] == [1.0, 2.0, 3.0, 4.0, 17.0, 18.0, 19.0, 20.0]
    assert [r.again_s for r in told.retractions] == [1.0, 2.0, 3.0, 4.0, 17.0, 18.0, 19.0, None]
    assert told.retractions[0].made_room_for == ("0", "1", "2", "3")
    assert told.retractions[0].others == 3


# --- asking -----------------------------------------------------------------------------------------------------


def test_of_one_name_the_newest():
    t = Told()
    t.arrive("1:x", prompt=3, name="x")
    t.end("1:x")
    assert t.of("x").prompt_tokens == 3
    t.arrive("2:x", prompt=5, name="x")
    assert t.of("x").prompt_tokens == 5
    t.end("2:x")
    assert t.of("x").prompt_tokens == 5
    t.arrive("bare", name="")
    assert t.of("bare").rid == "bare"


def test_the_answer_to_a_question():
    t = Told(finished=2)
    t.arrive("a")
    assert t.ledger.explain(ExplainRequest(id=1, name="a"), 3.0) == RequestExplained(
        id=1, timeline=t.ledger.timeline("a", 3.0)
    )
    assert t.ledger.explain(ExplainRequest(id=2, name="b"), 3.0) == Refused(
        id=2,
        problem="no request 'b' is known; those in flight are, and the last 2 that have ended, without those that were "
        "refused",
        code="unknown_request",
        field="rid",
        status=404,
    )


def test_asking_changes_nothing():
    def story(asked):
        t = Told()
        t.arrive("a")
        t.arrive("b")
        for now, told in enumerate(
            (
                lambda: t.plan(attempt("a"), attempt("b", "kv"), note="n"),
                lambda: t.run(1.0, ("a", 0, 10), sampled=["a"]),
                lambda: t.run(1.0, decoding=1, sampled=["a"]),
                lambda: t.retract("a", "b"),
                lambda: t.plan(attempt("b", "rows"), note="m"),
                lambda: t.run(2.0, ("b", 0, 10), sampled=["b"]),
                lambda: t.run(2.0, ("a", 2, 11), decoding=1, sampled=["a"]),
                lambda: t.run(3.0, decoding=2),
            )
        ):
            t.now += now
            told()
            if asked:
                assert t.of("a") == t.of("a")
                assert t.of("b") == t.of("b")
        live = t.of("a"), t.of("b")
        t.end("a")
        t.end("b")
        ended = t.of("a"), t.of("b")
        assert [msgspec.structs.replace(e, state="running", end=None) for e in ended] == list(live)
        return ended

    assert story(asked=True) == story(asked=False)


# --- bounds -----------------------------------------------------------------------------------------------------


def test_so_many_that_ended_are_remembered():
    t = Told()
    t.arrive("still here")
    for i in range(FINISHED + 5):
        t.arrive(f"{i}")
        t.end(f"{i}", "abort")
    assert t.of("4") is None
    assert t.of("5").rid == "5"
    assert t.of("still here").state == "waiting"


def test_a_name_outlives_what_it_named_before():
    t = Told(finished=1)
    t.arrive("1:x", name="x")
    t.arrive("2:y", name="y")
    t.end("1:x")
    t.arrive("3:x", prompt=3, name="x")
    t.end("2:y")  # the first x is forgotten
    assert t.of("x").prompt_tokens == 3
    t.end("3:x")
    assert t.of("y") is None
    t.arrive("3:x", prompt=4, name="x")  # the same id once more
    t.arrive("4:z", name="z")
    t.end("4:z")
    assert t.of("x").prompt_tokens == 4
    t.end("3:x")
    assert (t.of("x").prompt_tokens, t.of("z")) == (4, None)


def live_through(t, i):
    """A request with a cut prompt, a refusal, tokens and a retraction; two are in flight at a time."""
    rid = f"{i}:{i % 7}"
    t.arrive(rid, prompt=20, name=f"{i}")
    t.plan(attempt(rid, "kv"), note="n")
    t.now += 1.0
    t.plan(attempt(rid, selected=8))
    t.run(1.0, (rid, 0, 8))
    t.run(1.0, (rid, 8, 20), decoding=1, sampled=[rid])
    t.run(0.5 + i % 3, decoding=2, sampled=[rid])
    t.retract(rid, rid)
    t.run(1.0, (rid, 16, 22), decoding=1, sampled=[rid])
    t.run(1.0, decoding=2)
    t.end(rid)
    del t.requests[rid]


def test_ten_thousand_requests_leave_no_more_than_a_thousand():
    t = Told()
    for i in range(1000, 2500):
        live_through(t, i)
    early = len(pickle.dumps(t.ledger))
    for i in range(2500, 10_000):
        live_through(t, i)
    assert len(pickle.dumps(t.ledger)) <= early + 100
    assert not (t.ledger._live or t.ledger._fresh or t.ledger._held or t.ledger._joined or t.ledger._flights)
    assert len(t.ledger._names) == len(t.ledger._finished) == FINISHED
    assert all(len(told) < 2500 for _, told in t.ledger._finished.values())


def test_what_is_written_down_of_a_request_is_bounded():
    t = Told()
    wide = [chr(0x1F600 + i) * 200 for i in range(40)]  # the longest ids: 800 bytes each
    for i, name in enumerate(wide):
        t.arrive(f"{i}", name=name, prompt=1000)
    for i, reason in enumerate(["kv", "rows", "input", "chunk", "alignment", "cut"] * 50):
        t.now += 1 / 3
        t.plan(attempt("0", reason, charge=2**30), note=f"{i}" * 20)
    for i in range(100):
        t.plan(attempt("0"))
        t.run(1 / 3, *((f"{k}", i, 1000) for k in range(PREFILLS // 2)), decoding=i, sampled=["0"])
        t.retract("0", *(f"{k}" for k in range(1, 40)))
    t.end("0")
    (_, told), *_ = t.ledger._finished.values()
    assert 32_000 < len(told) <= 48 * 1024


# --- with a scheduler ---------------------------------------------------------------------------------------------


class Says(SchedulePolicy):
    """In order of arrival, holds what begins with 9, prefers to decode in every fourth round, and says so."""

    rounds = 0

    def rank(self, columns, ctx):
        ctx.fallbacks.append("by arrival")
        return (columns.id,)

    def hold(self, columns, ctx):
        return columns.prompt_len == 9

    def prefer_decode(self, ctx):
        self.rounds += 1
        return self.rounds % 4 == 0


def test_what_a_policy_does_is_told():
    h = Harness(schedule=Says(), max_running=2)
    h.add("a", range(5), max_new_tokens=20)
    h.step()
    h.add("held", range(9), max_new_tokens=1)
    h.add("b", range(5), max_new_tokens=2)
    for _ in range(5):
        h.step()
    told = {rid: h.scheduler._ledger.timeline(rid, h.now) for rid in ("held", "b")}
    assert (told["b"].notes, told["b"].overtaken.requests) == (("by arrival",), 0)
    assert (told["held"].notes, told["held"].overtaken) == (("by arrival",), Overtaken(1, 1, True))
    assert waits(told["held"]) == {"step": 1.0, "hold": 2.0, "rows": 1.0, "decode": 1.0}
    h.abort("held")  # between a round that held it and one that asks the policy for no order
    h.run()
    assert waits(h.scheduler._ledger.timeline("held", h.now)) == waits(told["held"])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_the_numbers_of_a_real_scheduler_add_up(mixed, overlap, seed):
    rng = random.Random(seed)

    def script(history):
        h.now += 1 / 8
        return history[-1] + 1

    h = Harness(
        script=script, pool_tokens=80, page_size=rng.choice([1, 4]), chunk_tokens=rng.choice([None, 8]), max_running=4,
        mixed_chunk=mixed, overlap=overlap, conservativeness=0.1, schedule=rng.choice(["fcfs", "lof", "hrrn"]),
    )  # fmt: skip
    left, sent = 24, []
    while left or h.scheduler.busy:
        if left and rng.random() < 0.4:
            left -= 1
            stem = list(range(rng.randrange(3) * 100, 400))[: rng.randrange(1, 30)]
            sent.append((f"r{left}", stem, h.now))
            h.add(f"r{left}", stem, max_new_tokens=rng.randrange(1, 25), ignore_eos=True)
        if sent and rng.random() < 0.02:
            h.abort(rng.choice(sent)[0])
        h.step()
    ledger = h.scheduler._ledger
    told = {rid: ledger.timeline(rid, h.now) for rid, _, _ in sent}
    assert sum(t.retraction_count for t in told.values()) == h.stat("retractions")
    for rid, prompt, _ in sent:
        t = told[rid]
        assert (t.end, t.output_tokens) == (h.finished[rid].reason, len(h.tokens.get(rid, ())))
        assert t.queue_s == pytest.approx(sum(wait.seconds for wait in t.waits))
        if t.first_token:
            first = t.first_token
            assert first.after_s == pytest.approx(first.queue_s + first.forward_s + first.between_s)
            assert min(first.queue_s, first.forward_s, first.between_s) > -1e-9
            assert (t.decoding.gap is None) == (t.decoding.steps == 0)
        if t.end == "length" and not t.retraction_count:
            assert t.started_s == pytest.approx(t.queue_s)
            assert t.chunks[0].start == t.cached_tokens == h.cached[rid]
            assert [c.stop for c in t.chunks] == [*(c.start for c in t.chunks[1:]), len(prompt)]
            assert t.decoding.steps == t.output_tokens - 1
            assert t.age_s == pytest.approx(t.first_token.after_s + t.decoding.seconds)
        if t.end == "length":
            (admitted,) = (a for a in t.attempts if not a.reason)
            assert admitted.count == t.chunk_count
    for a in ledger.attempts():
        assert 0 <= a.selected <= a.candidate
        assert a.is_chunked == (0 < a.selected < a.candidate)
        assert (a.before == a.after) == (a.selected == 0)
        assert (a.verdict == "CONTINUE") == (a.reason == "")
    assert not (ledger._live or ledger._fresh or ledger._held or ledger._joined)
