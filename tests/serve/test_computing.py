"""From configuration and folder to an executor, over tiny models."""

import re
import weakref
from dataclasses import replace

import pytest
import torch
from tiny_tokenizer import byte_level

from rtk import Engine
from rtk.config.load import config_from
from rtk.errors import ConfigError
from rtk.model.inline_executor import InlineExecutor
from rtk.model.thread_executor import ThreadExecutor
from rtk.native import Unavailable
from rtk.plugin import Capabilities
from rtk.plugin.host import installed
from rtk.plugin.testing.harness import Harness
from rtk.serve.computing import choose_backend, graphs, load, mixed_tokens, mixes, quantizer
from rtk.serve.runtime import Runtime, build_policies
from rtk_attention.torch.backend import TorchAttention


def build(zoo, kind="llama", vocab_size=99, **keys):
    config = config_from({"cache.pool_tokens": 64, **{k.replace("__", "."): v for k, v in keys.items()}})
    return load(config, choose_backend(config, installed()), zoo.folder(kind), vocab_size)


def test_the_summary_shows_the_arithmetic(zoo):
    computing = build(zoo, cache__page_size=16, schedule__max_running=3)
    assert "llama: llama, float32 on cpu" in computing.summary
    assert "up to 3 requests of 2,048 tokens" in computing.summary
    # 2 layers x (K + V) x 2 heads x 8 wide x 4 bytes
    assert "64 tokens asked for, + a page of 16, x 256 B" in computing.summary
    assert (computing.limits.pool_tokens, computing.limits.page_size) == (64, 16)
    assert "\n" not in computing.summary


def test_kernels_of_model_and_plugin_are_built_in_the_configured_cache_folder(zoo, tmp_path, monkeypatch):
    asked = []

    def none(source, cache):
        asked.append((source.name, cache))
        raise Unavailable("none here")

    monkeypatch.setattr("rtk.native._library", none)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    build(zoo, model__cache_dir=str(tmp_path))
    folder = tmp_path / "native"
    assert set(asked) == {("attention.cpp", folder), ("kernels.cpp", folder), ("panels.cpp", folder)}


def test_what_it_builds_serves(zoo):
    computing = build(zoo)
    harness = Harness(pool_tokens=64, context_length=2048)
    harness.scheduler._executor = computing.executor
    harness.add("a", [5, 6, 7], max_new_tokens=4)
    harness.run()
    assert len(harness.tokens["a"]) == 4
    assert computing.executor.stats() == {"forwards": 4, "attention_query_rows": 6, "replayed": 0}


def test_ids_that_the_tokenizer_does_not_know_are_never_sampled(zoo):
    computing = build(zoo, vocab_size=3)
    assert computing.vocab_size == 3
    harness = Harness(pool_tokens=64, context_length=2048)
    harness.scheduler._executor = computing.executor
    for i in range(4):
        harness.add(f"r{i}", [i], max_new_tokens=12, temperature=float(i), seed=i)
    harness.run()
    assert {token for tokens in harness.tokens.values() for token in tokens} <= {0, 1, 2}


@pytest.mark.parametrize("overlap", [False, True])
def test_a_closed_engine_holds_neither_model_nor_pool(zoo, overlap):
    computing = build(zoo, schedule__overlap=overlap)
    runner = (computing.executor._executor if overlap else computing.executor)._runner
    held = [weakref.ref(thing) for thing in (runner._loaded.model, runner._pool)]
    config = config_from({"model.path": "m"})
    engine = Engine(runtime=Runtime(config, build_policies(config), computing, byte_level()))
    del computing, runner
    assert len(engine.generate([1, 2, 3], {"max_new_tokens": 4, "ignore_eos": True}).token_ids) == 4
    assert None not in [ref() for ref in held]
    engine.close()
    assert [ref() for ref in held] == [None, None]


@pytest.mark.parametrize(
    ("wanted", "overlap", "kind"),
    [(None, False, InlineExecutor), (False, False, InlineExecutor), (True, True, ThreadExecutor)],
)
def test_steps_overlap_in_a_thread_of_their_own_where_that_is_asked_for(zoo, wanted, overlap, kind):
    computing = build(zoo, schedule__overlap=wanted)
    assert computing.overlap is overlap
    assert type(computing.executor) is kind
    computing.executor.close()


@pytest.mark.parametrize(
    ("wanted", "device", "declared", "captured"),
    [
        (None, "cuda", True, True),
        (None, "cuda", False, False),
        (None, "cpu", True, False),
        (True, "cuda", True, True),
        (False, "cuda", True, False),
    ],
)
def test_steps_are_captured_where_that_is_possible(wanted, device, declared, captured):
    capabilities = Capabilities(frozenset(), frozenset(), graphs=declared)
    assert graphs(config_from({"model.cuda_graphs": wanted}), device, capabilities) is captured


def test_an_engine_that_replays_answers_like_one_that_does_not(zoo, monkeypatch):
    """As on a CUDA device: what is recorded is run again."""

    def run_again(run):
        run()
        return run

    class Again(TorchAttention):
        capabilities = replace(TorchAttention.capabilities, graphs=True)

        def plan(self, batch, workspace):
            return [super().plan(batch, workspace), workspace]

        def replan(self, plan, batch):
            plan[0] = self.plan(batch, plan[1])[0]

        def forward(self, q, kv, call, plan):
            return super().forward(q, kv, call, plan[0])

    answers = []
    for captured in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr("rtk.serve.computing.graphs", lambda *_, captured=captured: captured)
            patch.setattr("rtk.model.cuda_graphs.cuda_recorder", lambda device: run_again)
            patch.setattr("rtk_attention.torch.backend.TorchAttention", Again)
            computing = build(zoo, schedule__max_running=3, attention__backend="torch", cache__pool_tokens=512)
            config = config_from({"model.path": "m"})
            engine = Engine(runtime=Runtime(config, build_policies(config), computing, byte_level()))
            params = [
                {"max_new_tokens": n, "ignore_eos": True, "temperature": t, "seed": 7} for n, t in ((3, 0), (9, 1))
            ]
            found = [engine.generate([[1, 2, 3], [4] * 9, [5]], own) for own in params]
            answers.append([one.token_ids for some in found for one in some])
            stats = computing.executor.stats()
            assert (stats["forwards"] - stats["replayed"]) == (1 if captured else stats["forwards"])
            engine.close()
    assert answers[0] == answers[1]


def test_ids_that_the_model_does_not_know_are_not_served(zoo):
    assert build(zoo, vocab_size=200).vocab_size == 99


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"model__context_length": 4096}, r"model.context_length = 4096: .* at most 2048 tokens"),
        ({"cache__pool_tokens": 1}, r"the KV pool would hold 1 tokens, the smallest request needs \d+"),
        ({"cache__pool_tokens": 2**31 - 1}, r"cache.pool_tokens = 2147483647: .* GiB are free"),
        (
            {"schedule__max_running": 10**9},
            r"schedule.max_running = 1000000000: tables of slots .* GiB are free; lower",
        ),
        ({"cache__mem_fraction": 0.5}, "both size the KV pool"),
        (
            {"cache__page_size": 16, "schedule__chunked_prefill_size": 8},
            r"schedule.chunked_prefill_size = 8: .* which hold 16 tokens; make it at least 16",
        ),
        (
            {"cache__page_size": 16, "schedule__mixed_chunk_size": 8},
            r"schedule.mixed_chunk_size = 8: .* which hold 16 tokens; make it at least 16",
        ),
        (
            {"cache__page_size": 16, "schedule__max_prefill_tokens": 8},
            r"schedule.max_prefill_tokens = 8: .* or set schedule.chunked_prefill_size = -1",
        ),
        ({"model__device": "cuda:99"}, r"model.device = 'cuda:99': not usable here: .*; choose cpu or auto"),
        (
            {"model__cuda_graphs": True, "attention__backend": "torch"},
            r"attention backend 'torch' cannot serve model.cuda_graphs = true \(device cpu has none\)",
        ),
        ({"model__device": "tpu"}, r"model.device = 'tpu': not usable here: "),
        ({"model__device": "meta"}, r"model.device = 'meta': not usable here: "),
        ({"model__device": "vulkan"}, r"model.device = 'vulkan': not usable here: "),
    ],
    ids=[
        "context",
        "small pool",
        "huge pool",
        "huge tables",
        "two sizes",
        "small pieces",
        "small pieces beside others",
        "small steps",
        "no GPU",
        "no graphs",
        "unknown device",
        "no values",
        "not built in",
    ],
)
def test_what_does_not_fit_is_one_line(zoo, keys, problem):
    with pytest.raises(ConfigError, match=problem) as refused:
        build(zoo, **keys)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("device", "dtype", "problem"),
    [
        ("cpu", "bfloat16", "model.quantize = 'int8' and model.dtype = 'bfloat16': it is for float32 on a CPU"),
        ("cuda", "auto", "model.quantize = 'int8' on cuda: it is for float32 on a CPU; leave one of them out"),
    ],
    ids=["another type", "another device"],
)
def test_weights_of_8_bits_are_for_float32_on_a_cpu(device, dtype, problem):
    config = config_from({"model.quantize": "int8", "model.dtype": dtype})
    with pytest.raises(ConfigError, match=f"^{re.escape(problem)}"):
        quantizer(config, device)


def test_a_start_without_the_kernel_for_8_bits_ends_before_a_model_is_read(monkeypatch):
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "DEFAULT")
    config = config_from({"model.quantize": "int8", "model.device": "cpu"})
    with pytest.raises(ConfigError, match="needs a processor with AVX-512; leave it out"):
        choose_backend(config, installed())


def test_a_cpu_has_no_number(zoo):
    assert "float32 on cpu," in build(zoo, model__device="cpu:5").summary


def test_a_shorter_context_than_the_models_own(zoo):
    assert build(zoo, model__context_length=100).limits.context_length == 100


@pytest.mark.parametrize(
    ("page", "size", "beside", "expected"),
    [
        (1, None, None, (1024, 96)),
        (4096, None, None, (4096, 4096)),
        (16, 64, None, (64, 64)),
        (16, 64, 32, (64, 32)),
        (1, None, 4096, (1024, 1024)),
        (16, -1, None, (None, None)),
        (16, -1, 32, (None, None)),
    ],
)
def test_the_longest_piece_of_a_prompt(zoo, page, size, beside, expected):
    sizes = {"schedule__chunked_prefill_size": size, "schedule__mixed_chunk_size": beside}
    computing = build(zoo, cache__page_size=page, cache__pool_tokens=16384, **sizes)
    assert (computing.limits.chunk_tokens, computing.limits.mixed_tokens) == expected


@pytest.mark.parametrize(
    ("device", "keys", "expected"),
    [
        ("cpu", {}, (True, 96)),
        ("cuda", {}, (False, None)),
        ("cpu", {"schedule.mixed_chunk": False}, (False, 96)),
        ("cuda", {"schedule.mixed_chunk": True, "schedule.mixed_chunk_size": 512}, (True, 512)),
        ("cpu", {"schedule.truncation_align_size": 100}, (True, 100)),
        ("cpu", {"schedule.truncation_align_size": 200}, (True, 200)),
    ],
)
def test_steps_are_mixed_by_device_unless_it_is_said(device, keys, expected):
    config = config_from(keys)
    assert (mixes(config, device), mixed_tokens(config, device, 1)) == expected
