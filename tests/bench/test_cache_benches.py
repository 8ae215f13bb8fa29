"""The cache benchmarks at tiny sizes: what they count is exact; what they time is not looked at."""

import importlib.util
import itertools
import json
import random
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "tests" / "data" / "conversation_trace_500.jsonl"


def load(name):
    sys.path.insert(0, str(ROOT / "bench"))  # as for a script that lies there
    try:
        spec = importlib.util.spec_from_file_location(f"bench_{name}", ROOT / "bench" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "bench"))
    return module


@pytest.fixture(scope="module")
def bench():
    return load("cache")


@pytest.fixture(scope="module")
def growth():
    return load("cache_growth")


@pytest.fixture(scope="module")
def trace():
    return load("cache_trace")


@pytest.fixture(scope="module")
def policy(trace):
    def build(name):
        entry = trace.installed().get("eviction", name)
        return entry.build(entry.plugin.options())

    return build


# --- beside the peer --------------------------------------------------------------------------------------------------


def test_replay_hits_the_system_prompt_and_then_the_whole_history(bench):
    requests = bench.packed(bench.conversations(sessions=2, turns=2, system=4, user=2, reply=3))
    assert bench.replay(requests, bench.Counter(100))[1] == (0 + 4 + 9 + 9) / (6 + 6 + 11 + 11)


@pytest.mark.parametrize("allocator", ["Counter", "SlotAllocator"])
def test_replay_evicts_what_a_small_pool_lacks(bench, allocator):
    other = [9, 8, 7, 6]
    requests = bench.packed([([1, 2], [1, 2, 3]), (other, [*other, 5]), ([1, 2], [1, 2, 3])])
    fresh = {"Counter": bench.Counter, "SlotAllocator": lambda pool: bench.SlotAllocator(pool, 1)}[allocator]
    assert bench.replay(requests, fresh(8))[1] == 2 / 8
    assert bench.replay(requests, fresh(7))[1] == 0


@pytest.mark.parametrize("nodes_a_call", [1, 3])
def test_storm_runs(bench, nodes_a_call):
    assert bench.storm(5, nodes_a_call, rounds=4) > 0


def test_targets_name_what_is_missed(bench):
    rows = (bench.AMPLE, bench.SMALL, bench.one_leaf(200), bench.one_leaf(20_000), bench.BULK)
    rtk = dict.fromkeys(rows, 10.0) | {bench.one_leaf(20_000): 20.0}
    peer = dict.fromkeys(rows, 50.0) | {bench.AMPLE: 49.0, bench.one_leaf(20_000): 2000.0, bench.BULK: 10.0}
    assert [(value, bound, met) for _, value, bound, met in bench.targets(rtk, peer)] == [
        (2.0, "<= 2", True),
        (4.9, ">= 5", False),
        (5.0, ">= 5", True),
        (100.0, ">= 100", True),
        (1.0, ">= 1", True),
    ]
    assert len(bench.targets(rtk, {})) == 1


def test_the_comparison_takes_medians_of_both_sides_by_turns(bench, monkeypatch, capsys):
    rows = (bench.AMPLE, bench.SMALL, *map(bench.one_leaf, (200, 2_000, 20_000)), bench.BULK)
    answers = {"rtk": iter([3.0, 1.0, 2.0]), "peer": iter([600.0, 200.0, 400.0])}
    asked = []

    def measured(interpreter, *_):
        asked.append("peer" if interpreter == "peer-python" else "rtk")
        return {row: {"us": next_} for next_ in [next(answers[asked[-1]])] for row in rows}

    monkeypatch.setattr(bench, "measured", measured)
    out = bench.beside(Path("peer-python"), 3)
    assert asked == ["peer", "rtk", "rtk", "peer", "peer", "rtk"]
    assert [value for _, value, *_ in out["targets"]] == [1.0, 200.0, 200.0, 200.0, 200.0]
    assert "NOT its default tree" in capsys.readouterr().out


# --- growth -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_growth_prints_a_row_for_each_size(growth, capsys):
    sides = {
        "grow": lambda nodes: growth.grow(nodes, "default"),
        "churn": growth.churn,
        "index": lambda tokens: growth.index_bytes(tokens // 16),
    }
    out = growth.growth([66, 99], "default", lambda side, nodes: sides[side](nodes))
    assert list(out["growth"]) == ["66", "99"]
    assert round(sum(out["index_bytes"].values()), 1) == 12.0
    assert len(capsys.readouterr().out.splitlines()) == 6


def test_a_branch_shares_its_stem_with_its_group_only(growth):
    first, last, other = (growth.branch(i) for i in (0, growth.FAN_OUT - 1, growth.FAN_OUT))
    stem = growth.LEAF * growth.TOKEN_BYTES
    assert first[:stem] == last[:stem] != other[:stem]
    assert first[stem:] == other[stem:] != last[stem:]


# --- the trace --------------------------------------------------------------------------------------------------------


def prompts(trace, *chains, tokens=None):
    return [trace.Request(tokens or trace.BLOCK * len(chain), chain) for chain in chains]


# Pool of 3: when [3] comes, [2] was used last but is not needed again, and [1] is needed next.
SCAN = ([1], [4], [2], [3], [1], [4])


def test_hits_by_hand(trace, policy):
    requests = prompts(trace, *SCAN)
    assert trace.replay(requests, 3, policy("lru")) == (0, 6 * 512, 0)  # evicts 1, then 4
    assert trace.clairvoyant(requests, 3) == (2 * 512, 6 * 512, 0)  # evicts 2 for 3
    assert trace.replay(requests, 4, policy("lru")) == trace.clairvoyant(requests, 4) == (2 * 512, 6 * 512, 0)


def test_clairvoyant_gives_up_single_blocks_the_deepest_first(trace, policy):
    requests = prompts(trace, [1, 2, 3], [9], [1, 2])
    assert trace.clairvoyant(requests, 3) == (2 * 512, 6 * 512, 0)  # 9 takes the place of 3
    assert trace.replay(requests, 3, policy("lru")) == (0, 6 * 512, 0)  # 9 takes that of the node 1, 2, 3


def test_clairvoyant_spares_what_the_request_itself_uses(trace):
    requests = prompts(trace, [1, 2], [1, 3], [1, 2], [4], [1, 2])
    assert trace.clairvoyant(requests, 2) == ((1 + 1 + 1) * 512, 9 * 512, 0)


def test_a_block_means_its_whole_prefix(trace):
    assert trace.clairvoyant(prompts(trace, [1, 2], [3, 2]), 9).hit == 0


def test_a_short_last_block_counts_its_tokens(trace, policy):
    requests = prompts(trace, [1, 2], [1, 2], tokens=700)
    assert trace.clairvoyant(requests, 2) == trace.replay(requests, 2, policy("lru")) == (700, 1400, 0)


def test_what_cannot_fit_is_skipped_and_counted(trace, policy):
    requests = prompts(trace, [1], [1, 2, 3], [1])
    assert trace.clairvoyant(requests, 2) == trace.replay(requests, 2, policy("lru")) == (512, 1024, 1)


def most_blocks_hit(chains, pool):
    """By trying every way to evict leaves."""
    paths = [[tuple(chain[: i + 1]) for i in range(len(chain))] for chain in chains]

    @cache
    def best(i, cached):
        if i == len(paths):
            return 0
        found = sum(block in cached for block in paths[i])
        lack = max(0, len(paths[i]) - found - (pool - len(cached)))
        kept = (cached - set(out) for out in itertools.combinations(sorted(cached - set(paths[i])), lack))
        whole = (left for left in kept if all(len(block) == 1 or block[:-1] in left for block in left))
        return found + max(best(i + 1, frozenset(left.union(paths[i]))) for left in whole)

    return best(0, frozenset())


def test_with_whole_blocks_nothing_beats_the_clairvoyant(trace):
    rng = random.Random(5)
    for _ in range(60):
        chains = [[rng.randrange(2) for _ in range(rng.randint(1, 4))] for _ in range(8)]
        for pool in (4, 5, 6):
            assert trace.clairvoyant(prompts(trace, *chains), pool).hit == 512 * most_blocks_hit(chains, pool)


def test_the_script_compares_every_installed_policy(trace, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out.json"
    arguments = ["--trace", str(TRACE), "--requests", "60", "--pools", "300,600,90000", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["cache_trace.py", *arguments])
    trace.main()
    answer = json.loads(out.read_text())
    names = {*trace.installed().names("eviction"), trace.REFERENCE}
    assert {"lru", "slru"} < names
    for pool, row in answer["pools"].items():
        assert row.keys() == names
        assert all(outcome["rate"] <= row[trace.REFERENCE]["rate"] for outcome in row.values()), pool
    assert {outcome["rate"] for outcome in answer["pools"]["90000"].values()} == {answer["unbounded"]}
    assert set(names) < set(capsys.readouterr().out.split())
