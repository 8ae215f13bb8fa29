"""The soak at a small size, against a server of its own; and that it finds what it looks for."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))  # as for a script that lies there
    try:
        return SimpleNamespace(soak=importlib.import_module("soak"), client=importlib.import_module("soak_client"))
    finally:
        sys.path.pop(0)


@pytest.mark.timeout(300)
def test_all_is_back_afterwards(bench, capsys):
    options = bench.soak.parser().parse_args(["--requests", "100", "--memory-mib", "96", "--", "--overlap", "true"])
    one = bench.soak.soak(options)
    assert bench.soak.report(one), capsys.readouterr().out
    kinds = one.figures["kinds"]
    assert (sum(kinds.values()), kinds["leaves"], kinds["malformed"], kinds["formed"]) == (100, 20, 5, 10)
    assert one.figures["counted"]["retractions"] > 0


def test_the_mix_is_the_same_for_a_seed(bench):
    one, again, other = (bench.client.plans(100, seed, several=True) for seed in (1, 1, 2))
    assert one == again != other
    assert sum(plan.kind == "several" for plan in one) == 5
    assert {plan.leaves for plan in one} == {None, "sending", "waiting", "events"}
    for path, body in bench.client.MALFORMED:
        assert path.startswith("/")
        assert isinstance(body, bytes)


def outcome(bench, said, status=200, **plan):
    """What a client makes of an answer."""
    wants = {"tokens": 3, "choices": 1, **plan.pop("wants", {})}
    plan = bench.client.Plan("plain", "/v1/completions", b"", wants=wants, **plan)
    found = bench.client.Outcome(plan, status=status)
    bench.client._take(found, said)
    return bench.client._wrong(found)


def choice(text="abc", index=0, reason="length"):
    return {"index": index, "text": text, "finish_reason": reason}


@pytest.mark.parametrize(
    ("said", "wants", "status", "problem"),
    [
        ({"choices": [choice()], "usage": {"completion_tokens": 3}}, {}, 200, ""),
        ({"choices": [choice()], "usage": {"completion_tokens": 2}}, {}, 200, "2 tokens, 3 x 1 were asked for"),
        ({"choices": [choice(reason=None)]}, {}, 200, "ends of choices []"),
        ({"choices": [choice()]}, {"choices": 2}, 200, "ends of choices [0]"),
        ({"choices": [choice("yes", reason="stop")]}, {"pattern": "yes|no"}, 200, ""),
        ({"choices": [choice("yess", reason="stop")]}, {"pattern": "yes|no"}, 200, "text 'yess'"),
        ({"error": {"code": "deadline_exceeded"}}, {"deadline": True}, 503, ""),
        ({"error": {"code": "deadline_exceeded"}}, {}, 503, "status 503 deadline_exceeded"),
        ({"error": {"code": "internal_error"}}, {"deadline": True}, 500, "status 500 internal_error"),
    ],
)
def test_clients_look_at_what_they_get(bench, said, wants, status, problem):
    assert outcome(bench, said, status, wants=wants) == problem


def test_a_malformed_body_must_be_refused(bench):
    plan = bench.client.Plan("malformed", "/generate", b"{")
    assert bench.client._wrong(bench.client.Outcome(plan, status=400, code="invalid_body")) == ""
    for status, code in ((200, ""), (500, "internal_error"), (400, "")):
        assert bench.client._wrong(bench.client.Outcome(plan, status=status, code=code)) == f"status {status}"


NEVER = "invariant_violations", "plugin_faults", "sampling_errors", "steps_failed", "grammar_faults"
AT_REST = dict.fromkeys(("in_flight", "running", "waiting", "compiling", "held", "grammar_pending", *NEVER), 0)
AT_REST |= {"free": 60, "evictable": 30, "pinned": 10, "pool": 100}
AT_REST |= {"free_rows": 4, "retractions": 2, "finished_abort": 2}


def broken(bench, check, *args, made=9):
    """What one of the checks finds fault with."""
    server = SimpleNamespace(log=["fine"], ask=lambda path: {"status": "ok", "output_tokens": made})
    one = bench.soak.Soak(server, bench.soak.parser().parse_args([]))
    getattr(one, check)(*args)
    return [check.what for check in one.checks if not check.holds]


def test_a_server_that_keeps_something_is_found(bench):
    before = {"free_rows": 4, "retractions": 0, "finished_abort": 0}
    assert broken(bench, "_check_server", before, AT_REST) == []
    for name, what in [("held", "held"), ("in_flight", "in_flight"), ("free", "slots free, evictable or pinned")]:
        assert broken(bench, "_check_server", before, {**AT_REST, name: AT_REST[name] + 1}) == [what]
    assert broken(bench, "_check_server", before, {**AT_REST, "free_rows": 3}) == ["request rows"]
    assert broken(bench, "_check_server", {**before, "retractions": 2}, AT_REST) == ["retractions"]


def test_processes_that_hold_more_are_found(bench):
    held = bench.soak.Held
    base = held(4, 3, 23, 100)
    assert broken(bench, "_check_held", base, held(4, 3, 23, 100 + 48 * 2**20)) == []
    assert broken(bench, "_check_held", base, held(4, 4, 24, 100)) == [
        "sockets more than before",
        "descriptors more than before",
    ]
    assert broken(bench, "_check_held", base, held(5, 3, 23, 100 + 49 * 2**20)) == ["processes", "MiB more than before"]


def test_rows_computed_for_nobody_are_found(bench):
    names = ("finished_abort", "finished_stop", "finished_error", "wasted_rows")
    stats = [dict(zip(names, counts, strict=True)) for counts in ((0, 0, 0, 0), (3, 1, 1, 5), (5, 1, 1, 7))]
    plan = bench.client.Plan("leaves", "/v1/completions", b"", rid="r")
    left = [bench.client.Outcome(plan, tokens=8) for _ in range(2)]
    assert broken(bench, "_check_leaving", *stats, left) == []
    assert broken(
        bench, "_check_leaving", stats[0], {**stats[1], "wasted_rows": 6}, {**stats[2], "wasted_rows": 9}, left
    ) == [
        "rows computed in vain, fire",
        "rows computed in vain, all leave",
    ]
    assert broken(bench, "_check_leaving", *stats, left[:1]) == ["requests aborted, all leave"]
    length = bench.client.LONG
    assert broken(bench, "_check_leaving", *stats, left, made=length) == ["answers that went on to their length"]
