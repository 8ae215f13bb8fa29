"""Which attention backend serves: `auto`, names, page sizes, and backends that break."""

import logging
import sys
from dataclasses import replace
from types import ModuleType
from typing import ClassVar

import pytest

from rtk.config.load import load_config
from rtk.errors import ConfigError, ModelError, PluginError
from rtk.model.probe import Probe
from rtk.plugin import KVShape, Options, Plugin
from rtk.plugin.attention import BufferSpec, KVLayout
from rtk.plugin.host import installed
from rtk.plugin.registry import INSTEAD, Origin, Registered, Registry
from rtk.serve import computing
from rtk.serve.backends import Choice
from rtk.serve.computing import choose_backend, load
from rtk_attention.torch.backend import TorchAttention

TORCH = installed().get("attention", "torch")
OTHERS = [one for one in installed().all() if one.plugin.kind != "attention"]
PLAIN = Probe(KVShape(2, 2, 8, 8, 4), frozenset(), "float32")
LATENT = replace(PLAIN, shape=KVShape(2, 1, 24, 16, 4, mla=True))
WINDOWED = replace(PLAIN, features=frozenset({"sliding_window"}))


class Toys:
    """Backends that are rtk's torch one with other capabilities, each from a package of its own."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._module = ModuleType("toys")
        patch.setitem(sys.modules, "toys", self._module)
        self.found = [TORCH]

    def add(self, name: str, *, error: BaseException | None = None, layout=None, ours=False, **declared) -> None:
        def build(options):
            if error is not None:
                raise error
            built = TorchAttention(options)
            built.capabilities = replace(TorchAttention.capabilities, **declared)
            if layout is not None:
                built.layout = layout
            return built

        function = name.replace("-", "_")
        setattr(self._module, function, build)
        plugin = Plugin(kind="attention", name=name, summary="s", target=f"toys:{function}")
        self.found.append(Registered(plugin, TORCH.origin if ours else Origin(name, f"rtk-{name}", "1")))

    def choose(self, **keys) -> Choice:
        registry = Registry([*OTHERS, *self.found])
        sets = [f"{key.replace('__', '.')}={value}" for key, value in {"model__device": "cpu", **keys}.items()]
        return choose_backend(load_config(registry, {}, {}, sets).config, registry)

    def refused(self, **keys) -> str:
        with pytest.raises(ConfigError) as caught:
            self.choose(**keys)
        return str(caught.value)


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Toys:
    return Toys(monkeypatch)


def settled(choice: Choice, needs: Probe = PLAIN) -> tuple[str, int, str]:
    """Name, page size, and what is told."""
    found = choice.settled(lambda kinds: needs)
    return found.name, found.layout.page_size, found.told


# --- auto ----------------------------------------------------------------------------------------------------------


def test_auto_takes_torch_where_there_is_nothing_better(toys: Toys) -> None:
    assert settled(toys.choose()) == ("torch", 1, "attention torch, pages of 1 token, by auto")


def test_auto_takes_the_highest_preference_that_can_serve_and_says_why_not_the_others(toys: Toys) -> None:
    toys.add("best", devices=frozenset({"cuda"}), preference=30)
    toys.add("fast", features=frozenset(), preference=20)
    toys.add("good", preference=10)
    toys.add("slow", preference=5)
    passed = "not best: device cpu (it runs on cuda)"
    assert settled(toys.choose()) == ("fast", 1, f"attention fast, pages of 1 token, by auto; {passed}")
    passed += "; not fast: the model's sliding_window"
    assert settled(toys.choose(), WINDOWED) == ("good", 1, f"attention good, pages of 1 token, by auto; {passed}")


def test_of_equals_auto_takes_rtks_own_and_then_the_first_by_name(toys: Toys) -> None:
    toys.add("b", preference=5)
    toys.add("a", preference=5)
    assert settled(toys.choose())[0] == "a"
    toys.add("z", preference=5, ours=True)
    assert settled(toys.choose())[0] == "z"


def test_auto_takes_none_below_zero(toys: Toys) -> None:
    toys.found.clear()
    toys.add("shy", preference=-1)
    reason = "it is taken by name only (preference -1)"
    assert toys.refused() == f"no attention backend can serve: shy: {reason}; see 'rtk attention'"
    assert settled(toys.choose(attention__backend="shy"))[2] == "attention shy, pages of 1 token, by attention.backend"


def test_auto_that_finds_nothing_names_every_reason(toys: Toys) -> None:
    toys.found.clear()
    assert toys.refused() == "no attention backend can serve: none is installed; see 'rtk attention'"
    toys.add("latent", kinds=frozenset({"mla"}), preference=30)
    toys.add("far", devices=frozenset({"cuda"}), page_sizes=frozenset({64}))
    toys.add("lacking", error=ImportError("no fast_package"))
    far = "far: device cpu (it runs on cuda)"
    lacking = "lacking: cannot be built: ImportError: no fast_package"
    with pytest.raises(ConfigError) as caught:
        toys.choose().settled(lambda kinds: PLAIN)
    assert str(caught.value) == (
        "no attention backend can serve: latent: the model's mha attention (it computes mla), "
        f"or {far}, or {lacking}; see 'rtk attention'"
    )
    assert settled(toys.choose(), LATENT)[0] == "latent"


def test_auto_goes_on_without_backends_that_break(toys: Toys, caplog: pytest.LogCaptureFixture) -> None:
    toys.add("absent", error=ModuleNotFoundError("No module named 'fast'"))
    toys.add("gone", error=ImportError("libfast.so.3"))
    toys.add("broken", error=ZeroDivisionError("[31m"))
    toys.add("exits", error=SystemExit(3))
    with caplog.at_level(logging.WARNING):
        name, _, told = settled(toys.choose())
    assert name == "torch"
    assert told == (
        "attention torch, pages of 1 token, by auto"
        "; not broken: cannot be built: ZeroDivisionError: [31m; not exits: cannot be built: SystemExit: 3"
        "; absent: absent, gone"
    )
    assert [record.message for record in caplog.records] == [
        "attention plugin 'broken' of rtk-broken 1 (entry point 'broken') cannot be built: ZeroDivisionError: [31m; "
        "it is not used",
        "attention plugin 'exits' of rtk-exits 1 (entry point 'exits') cannot be built: SystemExit: 3; it is not used",
    ]
    with pytest.raises(PluginError, match=r"'broken' of rtk-broken 1 .* cannot be built: ZeroDivisionError"):
        toys.choose(attention__backend="broken")


def test_auto_goes_on_without_one_that_is_not_built_in_time(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    toys.add("hangs")
    release = threading.Event()
    monkeypatch.setattr(sys.modules["toys"], "hangs", lambda options: release.wait(60))
    monkeypatch.setattr("rtk.plugin.registry.BUILD_S", 0.0)
    toys.found.remove(TORCH)
    try:
        assert "hangs: cannot be built: it has not ended within 0 s" in toys.refused()
    finally:
        release.set()


def refuses_heads(shape, page_size, kv_dtype):
    raise PluginError("attention plugin 'picky' takes heads of up to 4 dimensions")


def crashes(shape, page_size, kv_dtype):
    raise KeyError("head_dim")


def lays_out_64(shape, page_size, kv_dtype):
    return TorchAttention.layout(None, shape, 64, kv_dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layout", "reason", "warned"),
    [
        (refuses_heads, "attention plugin 'picky' takes heads of up to 4 dimensions", False),
        (crashes, "KeyError: 'head_dim'", True),
        (lays_out_64, "asked for pages of 16 tokens, it laid out pages of 64", False),
    ],
)
def test_one_that_cannot_lay_out_is_passed_over_by_auto_alone(
    toys: Toys, caplog: pytest.LogCaptureFixture, layout, reason: str, warned: bool
) -> None:
    toys.add("picky", layout=layout, preference=9)
    name, pages, told = settled(toys.choose(cache__page_size=16))
    assert (name, pages) == ("torch", 16)
    assert reason in told
    assert len(caplog.records) == warned
    with pytest.raises(PluginError, match=reason):
        toys.choose(cache__page_size=16, attention__backend="picky").settled(lambda kinds: PLAIN)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda layout: None, "its layout is a NoneType, not a KVLayout"),
        (lambda layout: replace(layout, layers=1), "asked for 2 layers, it laid out 1"),
        (lambda layout: replace(layout, layers=2.0), "asked for 2 layers, it laid out 2.0"),
        (lambda layout: replace(layout, page_size=1.0), "asked for pages of 1 tokens, it laid out pages of 1.0"),
        (lambda layout: replace(layout, buffers=()), "its layout has no tuple of buffers"),
        (
            lambda layout: replace(layout, buffers=layout.buffers[:1] * 2),
            "buffers of its layout have one name: 'k', 'k'",
        ),
        (
            lambda layout: replace(layout, buffers=(BufferSpec(["k"], (2, 8), "float32"),)),
            "buffers of its layout have names that are no text: ['k']",
        ),
        (
            lambda layout: replace(layout, buffers=(BufferSpec("k", (2, 8), ["int4"]),)),
            "buffer 'k' of its layout is of dtype ['int4']; there are float64, float32, bfloat16, float16",
        ),
        (
            lambda layout: replace(layout, buffers=(BufferSpec("k", (2, 8), "int4"),)),
            "buffer 'k' of its layout is of dtype 'int4'; there are float64, float32, bfloat16, float16",
        ),
        (
            lambda layout: replace(layout, buffers=(BufferSpec("k", (2, -8), "float32"),)),
            "buffer 'k' of its layout has shape (2, -8); it takes whole numbers from 1 up",
        ),
    ],
)
def test_a_layout_that_no_pool_can_be_made_of_is_refused(toys: Toys, change, problem: str) -> None:
    toys.add("lying", layout=lambda *asked: change(TorchAttention.layout(None, *asked)), preference=9)
    assert settled(toys.choose())[0] == "torch"
    with pytest.raises(PluginError) as caught:
        toys.choose(attention__backend="lying").settled(lambda kinds: PLAIN)
    label = "attention plugin 'lying' of rtk-lying 1 (entry point 'lying')"
    assert str(caught.value) == f"{label} cannot be used: {problem}; tell its authors, or do without it"


class Wavering(TorchAttention):
    """Says once, as it is built, what it can do."""

    answers: ClassVar[list[object]] = []

    @property
    def capabilities(self):  # type: ignore[override]
        answer = self.answers.pop(0) if self.answers else SystemExit("not again")
        if isinstance(answer, BaseException):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("later", "problem"),
    [
        (RuntimeError("not\nnow"), "cannot be built: RuntimeError: not now"),
        (SystemExit(0), "cannot be built: SystemExit: 0"),
        (KeyboardInterrupt(), "cannot be built: KeyboardInterrupt"),
        (None, "cannot be used: its capabilities are others each time"),
    ],
    ids=["raises", "exits", "interrupts", "forgets"],
)
def test_capabilities_that_cannot_be_had_again_are_refused_or_passed_over(
    toys: Toys, monkeypatch: pytest.MonkeyPatch, later: object, problem: str
) -> None:
    toys.add("wavering")
    monkeypatch.setattr(sys.modules["toys"], "wavering", Wavering)
    Wavering.answers = [TorchAttention.capabilities, later]
    name, _, told = settled(toys.choose())
    assert name == "torch"
    assert told.removesuffix(f"; {INSTEAD}") == f"attention torch, pages of 1 token, by auto; not wavering: {problem}"
    Wavering.answers = [TorchAttention.capabilities, later]
    with pytest.raises(PluginError) as caught:
        toys.choose(attention__backend="wavering")
    label = "attention plugin 'wavering' of rtk-wavering 1 (entry point 'wavering')"
    assert str(caught.value) == f"{label} {problem}; {INSTEAD}"


def test_what_a_backend_declares_is_read_as_it_is_built_and_never_again(
    toys: Toys, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.add("wavering")
    monkeypatch.setattr(sys.modules["toys"], "wavering", Wavering)
    declared = replace(TorchAttention.capabilities, preference=3, page_sizes={16, 32})
    Wavering.answers = [declared, declared]
    found = toys.choose().settled(lambda kinds: PLAIN)
    assert (found.name, found.declared) == ("wavering", replace(declared, page_sizes=frozenset({16, 32})))


def test_one_that_is_named_and_breaks_as_it_lays_out_is_named_in_one_line(toys: Toys) -> None:
    def leaves(*asked):
        raise SystemExit("a\nb")

    toys.add("leaving", layout=leaves)
    with pytest.raises(PluginError) as caught:
        toys.choose(attention__backend="leaving").settled(lambda kinds: PLAIN)
    label = "attention plugin 'leaving' of rtk-leaving 1 (entry point 'leaving')"
    assert str(caught.value) == f"{label} cannot lay out K/V: SystemExit: a b; tell its authors, or do without it"


def test_one_that_does_not_end_as_it_lays_out_is_left_behind(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    def lays_out_for_ever(*asked):
        while True:
            pass

    toys.add("busy", layout=lays_out_for_ever, preference=9)
    choice = toys.choose()
    monkeypatch.setattr("rtk.plugin.registry.BUILD_S", 0.05)
    with pytest.raises(PluginError) as caught:
        toys.choose(attention__backend="busy").settled(lambda kinds: PLAIN)
    label = "attention plugin 'busy' of rtk-busy 1 (entry point 'busy')"
    problem = "cannot lay out K/V: it has not ended within 0.05 s"
    assert str(caught.value) == f"{label} {problem}; {INSTEAD}"
    assert problem in settled(choice)[2]


def test_a_layout_answers_the_host_as_it_answered_when_it_was_looked_over(toys: Toys) -> None:
    class Cunning(KVLayout):
        @property
        def fingerprint(self) -> str:
            raise RuntimeError("asked once more")

    toys.add("cunning", layout=lambda *asked: Cunning(2, 1, (BufferSpec("k", (2, 8), "float32"),)), preference=9)
    found = toys.choose().settled(lambda kinds: PLAIN)
    assert (found.name, found.layout) == ("cunning", KVLayout(2, 1, (BufferSpec("k", (2, 8), "float32"),)))
    assert len(found.layout.fingerprint) == 16


def test_bytes_of_a_slot_are_exact_however_many(toys: Toys) -> None:
    """The memory that is free then does not hold a page: the pool refuses that."""
    huge = KVLayout(2, 1, (BufferSpec("k", (1 << 32, 1 << 32), "float32"),))
    toys.add("huge", layout=lambda *asked: huge, preference=9)
    assert toys.choose().settled(lambda kinds: PLAIN).layout.bytes_per_slot == 1 << 67


def test_a_model_is_asked_again_only_for_other_kinds_of_attention(toys: Toys) -> None:
    """One that has latents needs nothing of them of a backend that keeps K/V of every head."""
    toys.add("latents", kinds=frozenset({"mla"}), preference=30, layout=crashes)
    toys.add("more-latents", kinds=frozenset({"mla"}), preference=20, dtypes=frozenset({"bfloat16"}))
    toys.add("heads", kinds=frozenset({"mha"}), preference=10)
    asked: list[frozenset[str]] = []

    def ask(kinds: frozenset[str]) -> Probe:
        asked.append(kinds)
        return LATENT if "mla" in kinds else PLAIN

    found = toys.choose().settled(ask)
    assert (found.name, found.layout.buffers[0].shape) == ("heads", (2, 8))
    assert asked == [{"mla"}, {"mha"}]
    more = "not more-latents: dtype float32 (it computes bfloat16)"
    latents = "not latents: the model's K/V (KeyError: 'head_dim')"
    assert found.told == f"attention heads, pages of 1 token, by auto; {latents}; {more}"


# --- page sizes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("takes", "pages", "told"),
    [
        ({64}, 64, "pages of 64 tokens (it takes 64)"),
        ({32, 64}, 32, "pages of 32 tokens (it takes 32, 64)"),
        ({1, 64}, 1, "pages of 1 token"),
        (None, 1, "pages of 1 token"),
    ],
)
@pytest.mark.parametrize("backend", ["auto", "flash"])
def test_a_backend_forces_its_own_page_size_where_none_is_set(toys: Toys, takes, pages, told, backend) -> None:
    toys.add("flash", page_sizes=None if takes is None else frozenset(takes), preference=30)
    by = "auto" if backend == "auto" else "attention.backend"
    assert settled(toys.choose(attention__backend=backend)) == ("flash", pages, f"attention flash, {told}, by {by}")


def test_auto_passes_over_a_backend_that_the_page_size_does_not_suit(toys: Toys) -> None:
    toys.add("flash", page_sizes=frozenset({64}), preference=30)
    name, pages, told = settled(toys.choose(cache__page_size=16))
    assert (name, pages) == ("torch", 16)
    assert told == "attention torch, pages of 16 tokens, by auto; not flash: cache.page_size = 16 (it takes 64)"
    assert settled(toys.choose(cache__page_size=64)) == ("flash", 64, "attention flash, pages of 64 tokens, by auto")


def test_a_backend_that_is_named_is_refused_with_every_conflict_and_the_choices(toys: Toys) -> None:
    toys.add("flash", page_sizes=frozenset({64}), devices=frozenset({"cuda"}), preference=30)
    toys.add("other", page_sizes=frozenset({16, 32}), preference=-1)
    device, pages = "device cpu (it runs on cuda)", "cache.page_size = 16 (it takes 64)"
    named = {"attention__backend": "flash", "model__device": "cpu"}
    flash = "attention backend 'flash' cannot serve"
    assert toys.refused(cache__page_size=16, **named) == f"{flash} {device}; {pages}; choose torch, other"
    assert toys.refused(**named) == f"{flash} {device}; choose torch, other"
    toys.found.remove(TORCH)
    nobody = "no other that is installed can either; see 'rtk attention'"
    assert toys.refused(cache__page_size=8, **named).endswith(f"(it takes 64); {nobody}")


def test_a_type_that_is_configured_is_compared_before_a_model_is_read(toys: Toys) -> None:
    toys.add("flash", devices=frozenset({"cuda"}), dtypes=frozenset({"bfloat16"}))
    toys.add("single", dtypes=frozenset({"float32"}), preference=30)
    refusal = toys.refused(attention__backend="flash", model__dtype="bfloat16")
    assert refusal == "attention backend 'flash' cannot serve device cpu (it runs on cuda); choose torch"
    dtype = "dtype bfloat16 (it computes float32)"
    refusal = toys.refused(attention__backend="single", model__dtype="bfloat16")
    assert refusal == f"attention backend 'single' cannot serve {dtype}; choose torch"
    assert toys.choose(model__dtype="bfloat16").taken.name == "torch"
    assert toys.choose(model__dtype="auto").taken.name == "single"


def test_what_shows_when_the_model_ran_is_refused_too(toys: Toys) -> None:
    toys.add("flash", kinds=frozenset({"mla"}))
    with pytest.raises(ConfigError) as caught:
        toys.choose(attention__backend="flash").settled(lambda kinds: PLAIN)
    assert str(caught.value) == (
        "attention backend 'flash' cannot serve the model's mha attention (it computes mla); choose torch"
    )


@pytest.mark.parametrize("key", ["chunked_prefill_size", "max_prefill_tokens"])
def test_pages_that_prompts_cannot_be_cut_at_are_a_conflict_of_who_forces_them(toys: Toys, key: str) -> None:
    toys.add("flash", page_sizes=frozenset({64}), preference=30)
    conflict = f"schedule.{key} = 32 (prompts are cut at borders of its pages, which hold 64 tokens)"
    small = {f"schedule__{key}": 32}
    assert settled(toys.choose(**small))[2] == f"attention torch, pages of 1 token, by auto; not flash: {conflict}"
    refusal = toys.refused(attention__backend="flash", **small)
    assert refusal == f"attention backend 'flash' cannot serve {conflict}; choose torch"
    assert settled(toys.choose(schedule__chunked_prefill_size=-1, schedule__max_prefill_tokens=32))[0] == "flash"


def test_an_alignment_that_is_too_long_is_no_conflict_of_a_backend(toys: Toys) -> None:
    refusal = toys.refused(schedule__chunked_prefill_size=32, schedule__truncation_align_size=48)
    assert refusal.startswith("schedule.chunked_prefill_size = 32: prompts are cut at borders of pages, which hold 1 ")


# --- a start -------------------------------------------------------------------------------------------------------


def test_weights_are_read_once_whoever_turns_out_to_serve(
    toys: Toys, zoo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from rtk.model import loader

    toys.add("plain", features=frozenset(), page_sizes=frozenset({16}), preference=20)
    toys.add("flash", page_sizes=frozenset({64}), preference=10)
    loads = []
    real = loader.load_model
    monkeypatch.setattr(loader, "load_model", lambda *args, **given: loads.append(args) or real(*args, **given))
    choice = toys.choose(cache__pool_tokens=200)
    assert choice.taken.name == "plain"
    with caplog.at_level(logging.INFO):
        found = load(choice.config, choice, zoo.folder("mistral"), 99)  # its window shows when it runs
    assert (len(loads), found.attention, found.limits.page_size, found.limits.pool_tokens) == (1, "flash", 64, 256)
    told = "attention flash, pages of 64 tokens (it takes 64), by auto; not plain: the model's sliding_window"
    assert told in [record.message for record in caplog.records]
    found.executor.close()


class Compiles(TorchAttention):
    """Compiles what a batch is made of when it first sees that."""

    def __init__(self, options) -> None:
        super().__init__(options)
        self.compiled: list[str] = []
        self.raises: BaseException | None = None

    def plan(self, batch, workspace):
        kinds = ["decode" if length == 1 else "prompt" for length in batch.q_lens] + ["shared"] * bool(batch.shared)
        self.compiled += [kind for kind in dict.fromkeys(kinds) if kind not in self.compiled]
        return super().plan(batch, workspace)

    def forward(self, q, kv, call, plan):
        if self.raises is not None:
            raise self.raises
        return super().forward(q, kv, call, plan)


ALL = ["prompt", "decode", "shared"]


@pytest.fixture
def compiles(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> Compiles:
    toys.add("compiles", preference=9)
    built = Compiles(Options())
    monkeypatch.setattr(sys.modules["toys"], "compiles", lambda options: built)
    return built


@pytest.mark.parametrize(("pages", "kinds"), [(1, ALL), (16, ALL), (4096, ALL[:2])])
def test_what_is_compiled_when_it_is_first_needed_is_compiled_before_a_request_comes(
    toys: Toys, compiles: Compiles, zoo, pages: int, kinds: list[str]
) -> None:
    choice = toys.choose(
        cache__pool_tokens=200 + 2 * pages, cache__page_size=pages, attention__backend="compiles",
        schedule__chunked_prefill_size=-1,
    )  # fmt: skip
    found = load(choice.config, choice, zoo.folder("llama"), 99)
    assert compiles.compiled == kinds
    assert found.executor.stats() == {"forwards": 0, "attention_query_rows": 0, "replayed": 0}


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_a_model_that_no_step_can_be_computed_of_is_refused_in_one_line(
    toys: Toys, compiles: Compiles, zoo, kind: type[BaseException]
) -> None:
    choice = toys.choose(cache__pool_tokens=200, attention__backend="compiles")
    compiles.raises = kind("no\nkernel image")
    with pytest.raises(ModelError) as caught:
        load(choice.config, choice, zoo.folder("llama"), 99)
    problem = f"no step of llama can be computed with attention compiles: {kind.__name__}: no kernel image"
    assert str(caught.value) == f"{problem}; choose another attention.backend, or another model"


def test_what_the_files_tell_is_refused_before_weights_are_read(
    toys: Toys, zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rtk.model.loader.load_model", lambda *_, **__: pytest.fail("weights were read"))
    toys.add("plain", features=frozenset())
    choice = toys.choose(attention__backend="plain")
    with pytest.raises(ConfigError) as caught:
        computing.load(choice.config, choice, zoo.folder("gemma2"), 99)
    assert str(caught.value) == (
        "attention backend 'plain' cannot serve the model's sliding_window, softcap; choose torch"
    )


def test_a_model_goes_back_to_the_kind_of_attention_that_is_served(toys: Toys, zoo) -> None:
    from rtk.model.loader import load_model
    from rtk.model.probe import probe

    loaded = load_model(zoo.folder("deepseek_v3"))
    before = probe(loaded, {"mha"})
    assert probe(loaded, {"mha", "mla"}).shape == KVShape(2, 1, 24, 16, 4, mla=True)
    assert probe(loaded, {"mha"}) == before
    assert (before.mla, before.shape.kv_heads) == (False, 4)
