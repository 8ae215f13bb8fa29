"""What became of a request, told: exact sentences for one timeline after another."""

import pytest
from fake_scheduler import timeline

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
    Wait,
)
from rtk.serve.request_explanation import request_explanation

LEFT = Accounts(44, 36.25, 16384, 16, 3)
ORDER = "Order cost it nothing: nobody who came later was started before it."


def told(**more):
    return list(request_explanation(timeline(**more)).sentences)


def told_beside(plain, **more):
    """The sentences that are not among those of `plain`."""
    usual = told(**plain)
    return [sentence for sentence in told(**{**plain, **more}) if sentence not in usual]


def refused(reason, count=1, **more):
    attempt = AttemptRecord(
        **{
            "rid": "r", "step": 7, "time": 2.5, "rho": 0.7, "prefix": 0, "candidate": 40, "selected": 0,
            "is_chunked": False, "charge": 46, "locked": 0, "before": LEFT, "after": LEFT, "verdict": "OTHER",
            "reason": reason, **more,
        }
    )  # fmt: skip
    return Attempts(reason=reason, count=count, first=attempt, last=attempt)


RUNNING = {"state": "running", "started_s": 0.0, "age_s": 1.0}


def test_one_that_has_just_come():
    assert told() == ["It came with 4 prompt tokens; nobody was waiting.", "It is waiting.", ORDER]


def test_a_whole_story():
    assert told(
        state="finished", age_s=30.0, end="length", prompt_tokens=100, output_tokens=20, waiting_at_arrival=3,
        started_s=12.0, cached_tokens=32, queue_s=14.0, waits=(Wait("kv", 11.0), Wait("cut", 2.0), Wait("step", 1.0)),
        behind=Behind("big", "kv", 9.0), overtaken=Overtaken(2, 96, True), notes=("too many wait for lpm",),
        attempts=(refused("kv", 3, verdict="NO_TOKEN"), refused("", selected=40)),
        chunks=(Chunk(8, 32, 64, 13.0, 1.0, 0, 0, 4), Chunk(11, 64, 100, 16.0, 1.0, 2, 5, 4)), chunk_count=2,
        forward_s=2.0, first_token=FirstToken(16.0, 12.0, 2.0, 2.0),
        decoding=Decoding(
            seconds=12.0, steps=19, prefill_steps=2, prefill_s=3.0, prefill_tokens=96, mixed_steps=1, mixed_s=1.5,
            mixed_tokens=8, gap=Gap(4.0, 20.0, False, 1, 96, 3.0, False, "long"),
        ),
        retractions=(
            Retraction(
                step=20, after_s=18.0, why="memory", made_room_for=("a", "b"), others=0, output_tokens=5, again_s=20.0,
                cached_tokens=96,
            ),
        ),
        retraction_count=1,
    ) == [
        "It came with 100 prompt tokens; 3 requests were waiting.",
        "It waited 14.000 s: 11.000 s for KV capacity, 2.000 s for another request whose prompt was cut, "
        "1.000 s for the next step.",
        "It was refused 3 times, the last time after 2.500 s (step 7): no KV capacity, a charge of 46 tokens against "
        "36.2 that are not reserved, of 44 free or evictable ones.",
        "It stood longest behind 'big', 9.000 s, which waited for KV capacity.",
        "The schedule policy said meanwhile: too many wait for lpm.",
        "Order cost it time: 2 requests that came later started first, with 96 tokens to compute.",
        "32 of its 100 prompt tokens came from the cache.",
        "The rest was computed in 2 pieces of 32, 36 tokens, 2.000 s together, those after retractions among them.",
        "Between its pieces, 2 steps decoded for others.",
        "Mixing: 2 pieces shared a step with up to 4 requests that decoded.",
        "The same steps computed 5 tokens of other prompts.",
        "The first token came after 16.000 s: 12.000 s of waiting, 2.000 s of computing its prompt, 2.000 s between "
        "the two or between pieces.",
        "Most of that was waiting.",
        "It decoded for 12.000 s, in 19 steps.",
        "Meanwhile 2 steps computed 96 tokens of other prompts, and none for it: 3.000 s.",
        "Mixing: 1 of its steps computed 8 tokens of other prompts too, 1.500 s together.",
        "Its longest wait for a token was 4.000 s, up to 20.000 s after it came: 96 tokens of other prompts were "
        "computed, most for 'long', and 1 other request was retracted.",
        "It was retracted after 18.000 s (step 20) with 5 tokens of output, because 'a' and 'b' needed its slots for "
        "their next tokens; it was started again after 20.000 s with 96 tokens from the cache.",
        "It ended after 30.000 s with 20 tokens of output: length.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "waits", "sentence"),
    [
        ("waiting", [("kv", 2.0)], "It has been waiting 2.000 s for KV capacity."),
        ("waiting", [("kv", 2.0), ("hold", 1.0)], "It has been waiting 3.000 s: 2.000 s for KV capacity, 1.000 s for "
         "the schedule policy, which held it back."),
        ("running", [("rows", 2.0)], "It waited 2.000 s for a request row (schedule.max_running)."),
        ("running", [("input", 2.0)], "It waited 2.000 s for the prompt tokens of a step "
         "(schedule.max_prefill_tokens)."),
        ("running", [("chunk", 2.0)], "It waited 2.000 s for the prompt tokens of a step "
         "(schedule.chunked_prefill_size, or schedule.mixed_chunk_size)."),
        ("running", [("prefix", 2.0)], "It waited 2.000 s for a step that computed for another request what its prompt "
         "begins with."),
        ("running", [("alignment", 2.0)], "It waited 2.000 s for a step with room for a whole piece."),
        ("running", [("decode", 2.0)], "It waited 2.000 s for steps that the schedule policy gave to those who "
         "decode."),
        ("running", [("kv", 0.0004)], "It did not wait."),
        ("running", [], "It did not wait."),
    ],
)  # fmt: skip
def test_waits(state, waits, sentence):
    waits = tuple(Wait(*wait) for wait in waits)
    assert told(state=state, waits=waits, queue_s=sum(wait.seconds for wait in waits))[1] == sentence


@pytest.mark.parametrize(
    ("attempts", "why"),
    [
        (refused("kv", locked=19), "no KV capacity, a charge of 46 tokens and the 19 cached ones that it would lock "
         "against 36.2 that are not reserved, of 44 free or evictable ones"),
        (refused("rows"), "no free request row"),
        (refused("cut"), "another request's prompt was cut already, and one is at a time"),
        (refused("prefix"), "the step computes for another request what its prompt begins with, and the next one finds "
         "it cached"),
        (refused("alignment"), "what was left of the step is less than the shortest piece"),
        (refused("input"), "40 tokens to compute, too many for what was left of the prompt tokens of a step "
         "(schedule.max_prefill_tokens)"),
        (refused("chunk"), "40 tokens to compute, too many for what was left of the prompt tokens of a step "
         "(schedule.chunked_prefill_size, or schedule.mixed_chunk_size)"),
    ],
)  # fmt: skip
def test_refusals(attempts, why):
    assert told(attempts=(attempts,))[2] == f"It was refused once, after 2.500 s (step 7): {why}."


def test_behind():
    assert (
        told(behind=Behind("a b", "cut", 2.0))[2] == "It has stood longest behind 'a b', 2.000 s, whose prompt was cut."
    )
    assert told(**RUNNING, behind=Behind("a", "rows", 2.0))[2] == (
        "It stood longest behind 'a', 2.000 s, which waited for a request row (schedule.max_running)."
    )
    assert not any("behind" in sentence for sentence in told(behind=Behind("a", "rows", 0.0004)))


def test_order_that_is_not_known_to_the_end():
    assert told(overtaken=Overtaken(1, 5, False))[2] == (
        "Order cost it time: at least 1 request that came later started first, with 5 tokens to compute."
    )


def test_pieces():
    one = {"chunks": (Chunk(1, 0, 4, 1.0, 1.0, 0, 0, 0),), "chunk_count": 1, "forward_s": 1.0}
    assert told_beside(RUNNING, **one) == ["The prompt was computed in one step of 1.000 s."]
    many = tuple(Chunk(i, i, i + 1, 1.0, 1.0, 0, 0, 0) for i in range(9))
    assert told_beside(RUNNING, chunks=many, chunk_count=9, forward_s=9.0) == [
        "The prompt was computed in 9 pieces of up to 1 tokens, 9.000 s together."
    ]
    assert told_beside(RUNNING, cached_tokens=3, **one) == [
        "3 of its 4 prompt tokens came from the cache.",
        "The rest was computed in one step of 1.000 s.",
    ]


@pytest.mark.parametrize(
    ("parts", "pieces", "most"),
    [
        ((3.0, 2.0, 1.0), 2, ["Most of that was waiting."]),
        ((1.0, 3.0, 2.0), 2, ["Most of that was its own prompt."]),
        ((1.0, 2.0, 3.0), 2, ["Most of that was chunk size: larger pieces have less between them."]),
        ((1.0, 2.0, 3.0), 1, []),
        ((0.0, 0.0, 0.0), 1, []),
    ],
)
def test_the_first_token(parts, pieces, most):
    first, *rest = told_beside(RUNNING, first_token=FirstToken(sum(parts), *parts), chunk_count=pieces)
    assert first == (
        f"The first token came after {sum(parts):.3f} s: {parts[0]:.3f} s of waiting, {parts[1]:.3f} s of computing "
        f"its prompt, {parts[2]:.3f} s between the two or between pieces."
    )
    assert rest == most


def decoding(gap=None, **more):
    return Decoding(
        **{
            "seconds": 2.0, "steps": 1, "prefill_steps": 0, "prefill_s": 0.0, "prefill_tokens": 0, "mixed_steps": 0,
            "mixed_s": 0.0, "mixed_tokens": 0, "gap": gap, **more,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gap", "filled"),
    [
        (Gap(2.0, 5.0, True, 0, 0, 0.0, False, ""), "it was retracted"),
        (Gap(2.0, 5.0, False, 0, 0, 0.0, False, ""), "only the step that made it"),
        (Gap(2.0, 5.0, False, 2, 0, 0.0, False, ""), "2 other requests were retracted"),
        (Gap(2.0, 5.0, False, 0, 1, 0.0, True, "x"), "1 token of other prompts were computed, most for 'x'"),
    ],
)
def test_gaps(gap, filled):
    assert told_beside(RUNNING, decoding=decoding(gap)) == [
        "It decoded for 2.000 s, in 1 step.",
        "No other prompt was computed meanwhile.",
        f"Its longest wait for a token was 2.000 s, up to 5.000 s after it came: {filled}.",
    ]


def test_nothing_is_told_of_decoding_before_its_first_step():
    assert told_beside(RUNNING, decoding=decoding(steps=0)) == []


@pytest.mark.parametrize(
    ("retraction", "state", "rest"),
    [
        ({"made_room_for": ("a",)}, "waiting", "because 'a' needed its slots for their next tokens; it waits to be "
         "started again"),
        ({"made_room_for": ("a", "b", "c"), "others": 2}, "waiting", "because 'a', 'b', 'c' and 2 others needed its "
         "slots for their next tokens; it waits to be started again"),
        ({"made_room_for": ()}, "finished", "because there were too few slots; it was not started again"),
        ({"why": "preempted", "made_room_for": ("vip",), "again_s": 4.0}, "running", "because 'vip' took its place; it "
         "was started again after 4.000 s with 0 tokens from the cache"),
    ],
)  # fmt: skip
def test_retractions(retraction, state, rest):
    given = {"step": 3, "after_s": 1.5, "why": "memory", "others": 0, "output_tokens": 1, **retraction}
    plain = {"state": state, "started_s": 0.0, "end": "abort"}
    assert told_beside(plain, retractions=(Retraction(**given),), retraction_count=1) == [
        f"It was retracted after 1.500 s (step 3) with 1 token of output, {rest}."
    ]
    assert told_beside(plain, retractions=(Retraction(**given),), retraction_count=9)[0] == (
        "It was retracted 9 times; the first and the last are these."
    )


def test_ends():
    assert told(**RUNNING)[-1] == "It is running after 1.000 s, with 0 tokens of output so far."
    ended = told(state="finished", end="abort", age_s=2.0, output_tokens=1)
    assert ended[-1] == "It ended after 2.000 s with 1 token of output: abort."
    failed = told(state="finished", end="error", problem="the engine failed", age_s=2.0)
    assert failed[-1] == "It ended after 2.000 s with 0 tokens of output: error, the engine failed."
