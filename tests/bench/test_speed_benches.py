"""The benches of speed, without servers and models: what they make of measurements, and the simulated scheduler."""

import importlib
import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def load(name):
    sys.path.insert(0, str(BENCH))  # as for a script that lies there
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCH))


@pytest.fixture(scope="module")
def e2e():
    return load("e2e")


@pytest.fixture(scope="module")
def simulation():
    return load("chunk_simulation")


def row(tok_s, *texts):
    return {"out_tok_s": tok_s, "gap_max_ms": 10.0 * tok_s, "ttft_p50_s": 1.0, "texts": list(texts)}


def test_the_table_shows_medians_quartiles_and_ratios_of_pairs(e2e):
    ours = [{"single": row(tok_s, "a" * 40 + "x", "b")} for tok_s in (10.0, 12.0, 11.0)]
    theirs = [{"single": row(tok_s, "a" * 40 + "y", "c")} for tok_s in (10.0, 10.0, 10.0)]
    pairs = e2e.Pairs(ours, theirs, {"rtk": 0.25, "peer": 0.5})
    _, _, single, _, told = e2e.table(pairs, e2e.BOUNDS, "peer")
    assert single == (
        "| single | output tok/s | 11.0 (10.5 to 11.5) | 10.0 (10.0 to 10.0) | **1.10 (1.05 to 1.15)** | ≥ 1.05 | yes |"
    )
    assert told.startswith("3 of 6 texts begin alike (bound: 90%).")
    assert told.endswith("rtk 0.2 s, peer 0.5 s.")


@pytest.mark.parametrize(("ratio", "least", "most"), [(0.9, False, True), (1.0, True, True), (1.1, True, False)])
def test_bounds_are_from_below_or_from_above(e2e, ratio, least, most):
    assert e2e.Bound("single", "out_tok_s", least=1.0).holds(ratio) is least
    assert e2e.Bound("single", "gap_max_ms", most=1.0).holds(ratio) is most


def test_one_pair_needs_no_quartiles(e2e):
    assert e2e.spread([2.0], 1) == "2.0 (2.0 to 2.0)"


def test_the_section_is_replaced_where_it_stands_and_added_where_it_does_not(e2e):
    new = f"{e2e.SECTION}\n\nnew\n"
    assert e2e.replaced("# Results\n\ntext\n", new) == f"# Results\n\ntext\n\n{new}"
    page = f"# Results\n\n{e2e.SECTION}\n\nold\n\n| a |\n\n## Other\n\nstays\n"
    assert e2e.replaced(page, new) == f"# Results\n\n{new}\n## Other\n\nstays\n"
    assert e2e.replaced(f"# Results\n\n{e2e.SECTION}\n\nold\n", new) == f"# Results\n\n{new}"


def test_both_sides_get_the_same_threads_bytes_and_sizes(e2e, tmp_path):
    sizes = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    args = e2e.argparse.Namespace(
        threads=3, kv_gib=2, peer_python="PY", peer_name="p", peer_command=e2e.VLLM, peer_budget="--b {}", rtk_flags=[]
    )
    ours, theirs = e2e.rtk(tmp_path, args).command, e2e.peer(tmp_path, args, 128)
    assert ours[ours.index("--pool-tokens") + 1] == "46603"
    assert ours[ours.index("--threads") + 1] == "3"
    assert theirs.env == {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "0-2"}
    assert theirs.command[0] == "PY" and theirs.command[-2:] == ["--b", "128"]
    assert "--b" not in e2e.peer(tmp_path, args).command
    for ours_name, theirs_name in (("--context-length", "--max-model-len"), ("--max-running", "--max-num-seqs")):
        assert ours[ours.index(ours_name) + 1] == theirs.command[theirs.command.index(theirs_name) + 1]


def test_a_simulated_step_costs_what_the_tables_say(simulation):
    """A prompt of one token, and one token more: two steps of a row, reading nothing and then one position."""
    job = simulation.Job(2.0, [5], 2)
    [answer] = simulation.Simulation(simulation.Sizes(64, False)).serve([job])
    assert len(answer.tokens) == 2
    row_ms = simulation.LINEAR_MS[0] + simulation.REST_MS + simulation.REST_ROW_MS
    operations = 4 * 576 * 30 / simulation.SINGLE_A_S
    read = 46080 / simulation.BYTES_A_S
    first, second = (1e-3 * row_ms + positions * (operations + read) for positions in (1, 2))
    assert answer.times == pytest.approx([2.0 + first, 2.0 + first + second])


def test_short_pieces_shorten_the_simulated_pause(simulation):
    def gap(sizes):
        jobs = [simulation.Job(0, [7], 20), simulation.Job(0.1, list(range(1000)), 1)]
        decoding, _ = simulation.Simulation(sizes).serve(jobs)
        return simulation.figures([decoding]).gap_ms

    whole, cut, mixed = (gap(simulation.Sizes(*s)) for s in ((1024, False), (128, False), (1024, True, 128)))
    assert cut > whole > 600
    assert 100 < mixed < 200


def test_a_bench_beside_it_can_import_the_standard_librarys_profile():
    code = f"import sys; sys.path.insert(0, {str(BENCH)!r}); import cProfile, profile; print(profile.__file__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == Path(sysconfig.get_path("stdlib")) / "profile.py"
