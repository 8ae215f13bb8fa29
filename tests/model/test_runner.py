"""The runner computes what transformers' own generate computes, however a request is cut, mixed and placed."""

import functools
import gc
import json
import weakref
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import make_runner

from rtk.errors import ModelError
from rtk.model.fused import fuse_layers
from rtk.model.inline_executor import InlineExecutor
from rtk.model.linear import pack_linears
from rtk.model.loader import load_model
from rtk.model.probe import probe
from rtk.model.runner import ModelRunner
from rtk.model.store import fetch
from rtk.schedule.batch import Row, SampleInputs, Scored, StepPlan, TableWrite

EXAMPLES = json.loads((Path(__file__).parents[1] / "data" / "worked_examples.json").read_text())
NEW = 10


@dataclass
class Request:
    row: int
    tokens: list[int]
    slots: list[int]
    computed: int = 0


class Driver:
    """A scheduler of dice: chunks of random length, prefill and decode mixed, rows and pages in random order."""

    def __init__(self, runner: ModelRunner, page_size: int, seed: int = 0) -> None:
        self._runner = runner
        self._page_size = page_size
        self._random = np.random.default_rng(seed)
        self._pages = self._random.permutation(np.arange(1, 2048 // page_size)).tolist()
        self._rows = self._random.permutation(8).tolist()
        self._steps = 0

    def run(self, prompts: list[list[int]], new: int) -> list[list[int]]:
        """`new` tokens for each prompt; a further request arrives with every step."""
        requests = [self._request(prompt, new) for prompt in prompts]
        wanted = [len(prompt) + new for prompt in prompts]
        while pending := [r for r, length in zip(requests, wanted, strict=True) if len(r.tokens) < length]:
            self._step(pending[: 1 + self._steps])
        return [request.tokens[-new:] for request in requests]

    def _request(self, prompt: list[int], new: int) -> Request:
        pages = [self._pages.pop() for _ in range(-(-(len(prompt) + new) // self._page_size))]
        slots = [page * self._page_size + i for page in pages for i in range(self._page_size)]
        return Request(self._rows.pop(), list(prompt), slots)

    def _step(self, requests: list[Request]) -> None:
        """Compute some of the tokens that are due, of at least one request."""
        rows, tokens, slots, sampling = [], [], [], []
        for i in self._random.permutation(len(requests)):
            request = requests[i]
            q_len = min(int(self._random.integers(0 if rows else 1, 7)), len(request.tokens) - request.computed)
            if q_len == 0:
                continue
            stretch = slice(request.computed, request.computed + q_len)
            rows.append(Row(request.row, request.computed, q_len, int(stretch.stop == len(request.tokens))))
            tokens += request.tokens[stretch]
            slots += request.slots[stretch]
            request.computed += q_len
            sampling += [request] if rows[-1].samples else []
        plan = StepPlan(self._steps, tuple(rows), np.array(tokens, np.int32), np.array(slots, np.int32))
        logits = self._runner.compute(plan).logits
        assert logits.shape == (len(sampling), 99)
        for request, best in zip(sampling, logits.argmax(dim=-1).tolist(), strict=True):
            request.tokens.append(best)
        self._steps += 1


def prompts_of(seed: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(1, 99, length).tolist() for length in (3, 19, 1, 33)]


def generated(model, prompts: list[list[int]], new: int) -> list[list[int]]:
    """What transformers generates greedily, each prompt alone."""
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False)
        answers.append(out[0, len(prompt) :].tolist())
    return answers


KINDS = ["llama", "llama tied", "qwen2", "qwen3", "mistral", "gemma2", "granite", "gpt2", "gpt_oss", "deepseek_v3"]


@pytest.mark.parametrize("kind", KINDS)
def test_chunked_and_mixed_batches_give_what_generate_gives(zoo, kind):
    prompts = prompts_of(len(kind))
    wanted = generated(zoo.eager(kind), prompts, NEW)
    for page_size in (1, 16):
        for fuse in (False, True):
            loaded = zoo.load(kind)
            runner = make_runner(loaded, page_size=page_size)
            if fuse:
                fuse_layers(loaded)
                pack_linears(loaded)
            driver = Driver(runner, page_size, seed=page_size)
            assert driver.run(prompts, NEW) == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_a_transformers_forward(zoo, kind, monkeypatch):
    monkeypatch.setattr("rtk.model.logprobs.AT_ONCE", 4 * 99)  # in pieces of four positions
    prompt = prompts_of(len(kind))[3]
    wanted = zoo.eager(kind)(torch.tensor([prompt])).logits[0].double().log_softmax(-1)
    loaded = zoo.load(kind)
    executor = InlineExecutor(make_runner(loaded), vocab_size=97)
    fuse_layers(loaded)
    found = []
    for start, stop in ((0, 20), (20, 33)):
        slots = np.arange(start + 5, stop + 5, dtype=np.int32)
        first, last = max(start, 3), min(stop, 32)  # tokens 4 to 32 follow positions 3 to 31
        scored = Scored(0, first - start, np.array(prompt[first + 1 : last + 1], np.int32), 5)
        row = Row(0, start, stop - start, int(stop == 33))
        plan = StepPlan(0, (row,), np.array(prompt[start:stop], np.int32), slots, scored=(scored,))
        step = executor.launch(plan)
        if stop == 33:
            step.sample(greedy())
        found += step.result().scores[0]
    assert [entry.token for entry in found] == prompt[4:]
    for entry, own in zip(found, wanted[3:], strict=False):
        assert entry.logprob == pytest.approx(own[entry.token].item(), abs=1e-4)
        best = own[:97].topk(5)
        assert [token for token, _ in entry.top] == best.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_a_model_that_does_not_name_its_body_is_scored_too(zoo, monkeypatch):
    prompt = prompts_of(4)[1]
    loaded = zoo.load("granite")
    monkeypatch.setattr(loaded.model, "get_decoder", lambda: loaded.model)
    monkeypatch.setattr("rtk.model.logprobs.AT_ONCE", 5 * 99)
    executor = InlineExecutor(make_runner(loaded), vocab_size=99)
    scored = Scored(0, 0, np.array(prompt[1:], np.int32), 0)
    plan = StepPlan(
        0, (Row(0, 0, 19, 0),), np.array(prompt, np.int32), np.arange(5, 24, dtype=np.int32), scored=(scored,)
    )
    wanted = zoo.eager("granite")(torch.tensor([prompt])).logits[0].double().log_softmax(-1)
    (found,) = executor.launch(plan).result().scores
    assert [entry.logprob for entry in found] == pytest.approx(
        [wanted[i, token].item() for i, token in enumerate(prompt[1:])], abs=1e-4
    )


def test_float64_agrees_with_float32(zoo):
    prompts = prompts_of(1)
    found = {}
    for dtype in ("float32", "float64"):
        loaded = zoo.load("llama", dtype=dtype)
        assert probe(loaded).dtype == dtype
        found[dtype] = Driver(make_runner(loaded), 1).run(prompts, NEW)
    assert found["float32"] == found["float64"]


def cold(slots: list[int], tokens: list[int], row: int = 0) -> StepPlan:
    return StepPlan(0, (Row(row, 0, len(tokens), 1),), np.array(tokens, np.int32), np.array(slots, np.int32))


def test_slots_need_not_be_in_order(zoo):
    ordered, shuffled = (
        make_runner(zoo.load("llama")).compute(cold(slots, [7, 8, 9, 10])).logits
        for slots in ([3, 4, 5, 6], [3, 5, 4, 6])
    )
    torch.testing.assert_close(shuffled, ordered, atol=1e-5, rtol=1e-5)


def test_a_cached_prefix_is_written_to_the_table_and_not_computed(zoo):
    numbers = EXAMPLES["extend_shape"]
    prompt = np.random.default_rng(3).integers(1, 99, numbers["prompt"]).astype(np.int32)
    runner = make_runner(zoo.load("llama"), slots=4096)
    whole = runner.compute(cold(list(range(1, len(prompt) + 1)), prompt.tolist())).logits
    assert runner.stats.query_rows == numbers["prompt"]
    cached = numbers["cached"]
    plan = StepPlan(
        step=1,
        rows=(Row(5, cached, len(prompt) - cached, 1),),
        tokens=prompt[cached:],
        slots=np.arange(3000, 3000 + len(prompt) - cached, dtype=np.int32),
        writes=(
            TableWrite(5, 0, np.arange(1, 1001, dtype=np.int32)),
            TableWrite(5, 1000, np.arange(1001, cached + 1, dtype=np.int32)),
        ),
    )
    warm = runner.compute(plan).logits
    torch.testing.assert_close(warm, whole, atol=1e-4, rtol=1e-4)
    assert runner.stats.query_rows == numbers["prompt"] + numbers["q_rows"]
    assert runner.stats.forwards == 2


def test_a_step_that_samples_nothing_has_no_logits(zoo):
    for kind in ("llama", "gemma2", "gpt2"):
        runner = make_runner(zoo.load(kind))
        plan = StepPlan(0, (Row(0, 0, 3, 0),), np.array([1, 2, 3], np.int32), np.array([4, 5, 6], np.int32))
        assert runner.compute(plan).logits.shape == (0, 99)


def test_several_samples_of_one_row(zoo):
    runner = make_runner(zoo.load("llama"))
    tokens = [5, 6, 7, 8]
    rows = (Row(0, 0, 4, 3), Row(1, 0, 4, 1))
    plan = StepPlan(0, rows, np.array(tokens * 2, np.int32), np.arange(1, 9, dtype=np.int32))
    logits = runner.compute(plan).logits
    prefixes = [runner.compute(cold([20 + i for i in range(n)], tokens[:n], row=2)).logits for n in (2, 3, 4)]
    torch.testing.assert_close(logits[:3], torch.cat(prefixes), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits[3], logits[2], atol=1e-5, rtol=1e-5)


def test_layers_that_bypass_attention_are_noticed_at_the_first_forward(zoo):
    loaded = zoo.load("llama")
    runner = make_runner(loaded)
    loaded.model.config.num_hidden_layers = 1  # the model's loop stops a layer early
    with pytest.raises(ModelError, match="called 1 times for 2 layers"):
        runner.compute(cold([1, 2], [3, 4]))


def test_a_layer_that_attends_in_place_of_another_is_noticed_too(zoo):
    loaded = zoo.load("llama")
    runner = make_runner(loaded)
    loaded.model.model.layers[1].self_attn.layer_idx = 0
    with pytest.raises(ModelError, match="called 2 times for 2 layers"):
        runner.compute(cold([1, 2], [3, 4]))


FUSED = ["llama", "llama tied", "qwen2", "qwen3", "mistral", "granite"]


@pytest.mark.parametrize("kind", FUSED)
def test_fused_layers_change_nothing_but_the_time(zoo, kind):
    loaded, plain = zoo.load(kind), zoo.load(kind)
    runners = [make_runner(plain), make_runner(loaded)]
    assert fuse_layers(loaded) == 2
    tokens = list(range(1, 40))
    slots = list(range(1, 40))
    wanted, fused = (runner.compute(cold(slots, tokens)).logits for runner in runners)
    torch.testing.assert_close(fused, wanted, atol=1e-5, rtol=1e-5)
    assert ("forward" in vars(loaded.model.model)) == (kind != "granite")


def test_fused_layers_hold_their_weights_once(zoo):
    loaded = zoo.load("llama")
    fuse_layers(loaded)
    projections = [
        module for layer in loaded.model.model.layers for module in layer.modules() if hasattr(module, "in_features")
    ]
    assert len(projections) == 14
    for module in projections:
        assert module.weight.shape == (module.out_features, module.in_features)
        assert module.weight.untyped_storage().nbytes() == 4


def test_norms_keep_their_epsilon(zoo):
    loaded = zoo.load("llama")
    for name, module in loaded.model.named_modules():
        if name.endswith("layernorm"):
            module.variance_epsilon = 0.1
    assert fuse_layers(loaded) == 2


def test_head_norms_and_factors_keep_their_values(zoo):
    """Of weights that are 1 and factors that are 1 a test would not see whether they are applied."""
    for kind in ("qwen3", "granite"):
        loaded = zoo.load(kind)
        for name, module in loaded.model.named_modules():
            if name.endswith("norm"):
                torch.nn.init.uniform_(module.weight, 0.5, 2)
        runner = make_runner(loaded)
        before = runner.compute(cold([1, 2, 3], [3, 4, 5])).logits
        assert fuse_layers(loaded) == 2
        after = runner.compute(cold([1, 2, 3], [3, 4, 5])).logits
        torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-5)


def test_a_body_that_does_more_than_its_class_calls_its_fused_layers_itself(zoo):
    loaded = zoo.load("llama")
    norm = loaded.model.model.norm
    norm.forward = functools.partial(lambda original, x: 1.001 * original(x), norm.forward)
    runner = make_runner(loaded)
    before = runner.compute(cold([1, 2], [3, 4])).logits
    assert fuse_layers(loaded) == 2
    assert "forward" not in vars(loaded.model.model)
    torch.testing.assert_close(runner.compute(cold([1, 2], [3, 4])).logits, before, atol=1e-5, rtol=1e-5)


def test_further_logits_of_a_step_leave_the_fused_body_in_its_place(zoo):
    loaded = zoo.load("llama")
    runner = make_runner(loaded)
    fuse_layers(loaded)
    body = loaded.model.model.forward
    plan = replace(cold([1, 2, 3], [3, 4, 5]), scored=(Scored(0, 0, np.array([4, 5], np.int32), 1),))
    logits, head = runner.compute(plan)
    torch.testing.assert_close(head(torch.tensor([2])), logits)
    assert loaded.model.model.forward is body


def test_a_fused_model_is_freed_at_once(zoo):
    loaded = zoo.load("llama")
    fuse_layers(loaded)
    pack_linears(loaded)
    model, head = weakref.ref(loaded.model), weakref.ref(loaded.model.lm_head.forward)
    gc.disable()
    try:
        del loaded
        assert model() is None
        assert head() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["gemma2", "gpt2", "gpt_oss", "deepseek_v3"])
def test_layers_of_other_classes_are_left_alone(zoo, kind):
    assert fuse_layers(zoo.load(kind)) == 0


def test_a_layer_that_was_changed_is_left_alone(zoo, monkeypatch):
    loaded = zoo.load("llama")
    mlp = loaded.model.model.layers[0].mlp
    original = mlp.forward
    monkeypatch.setattr(mlp, "forward", lambda x: 1.001 * original(x))
    runner = make_runner(loaded)
    before = runner.compute(cold([1, 2], [3, 4])).logits
    assert fuse_layers(loaded) == 1
    assert pack_linears(loaded) == 8  # the head, and those of the other layer
    torch.testing.assert_close(runner.compute(cold([1, 2], [3, 4])).logits, before, atol=1e-5, rtol=1e-5)


def test_a_layer_with_other_linear_modules_is_left_alone(zoo):
    class Other(torch.nn.Linear):
        """Stands for a quantised or adapted layer."""

    loaded = zoo.load("llama")
    loaded.model.model.layers[1].self_attn.q_proj = Other(32, 32, bias=False)
    assert fuse_layers(loaded) == 1


def test_layers_are_fused_in_float32_only(zoo):
    assert fuse_layers(zoo.load("llama", dtype="float64")) == 0


GREEDY = {"top_p": np.ones(1, np.float32), "top_k": np.full(1, -1, np.int32), "uniform": np.zeros(1)}


def greedy() -> SampleInputs:
    return SampleInputs(temperature=np.zeros(1, np.float32), **GREEDY)


def test_the_inline_executor_samples_what_the_runner_computes(zoo):
    runner = make_runner(zoo.load("llama"))
    best = int(runner.compute(cold([1, 2, 3], [7, 8, 9])).logits[0].argmax())
    executor = InlineExecutor(runner, vocab_size=99)
    step = executor.launch(cold([11, 12, 13], [7, 8, 9], row=1))
    step.sample(SampleInputs(temperature=np.zeros(1, np.float32), **GREEDY))
    assert step.result().tokens == ((best,),)
    assert executor.stats() == {"forwards": 2, "attention_query_rows": 6, "replayed": 0}
    narrow = InlineExecutor(runner, vocab_size=best)
    step = narrow.launch(cold([11, 12, 13], [7, 8, 9], row=1))
    step.sample(SampleInputs(temperature=np.zeros(1, np.float32), **GREEDY))
    assert step.result().tokens[0][0] < best


def test_a_step_without_samples_has_an_empty_result(zoo):
    executor = InlineExecutor(make_runner(zoo.load("llama")), vocab_size=99)
    plan = StepPlan(0, (Row(0, 0, 1, 0),), np.array([1], np.int32), np.array([4], np.int32))
    assert executor.launch(plan).result().tokens == ()


def test_what_the_computation_raises_is_raised_by_the_result(zoo):
    executor = InlineExecutor(make_runner(zoo.load("llama")), vocab_size=99)
    step = executor.launch(cold([1], [4711]))
    step.sample(SampleInputs(temperature=np.zeros(1, np.float32), **GREEDY))
    with pytest.raises(IndexError):
        step.result()
    step = executor.launch(cold([1], [5]))
    step.sample(SampleInputs(temperature=np.zeros(1, np.float32), **GREEDY))
    assert len(step.result().tokens) == 1


@pytest.mark.model
@pytest.mark.parametrize("fuse", [False, True], ids=["plain", "fused"])
def test_the_demo_model_gives_what_generate_gives(fuse):
    from transformers import AutoModelForCausalLM

    folder = fetch()
    prompt = np.random.default_rng(0).integers(100, 40000, 40).tolist()
    eager = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    wanted = generated(eager, [prompt], 8)[0]
    loaded = load_model(folder)
    runner = make_runner(loaded, slots=64)
    if fuse:
        assert fuse_layers(loaded) == 30
        assert pack_linears(loaded) == 1
    tokens, slots = list(prompt), list(range(64, 0, -1))
    logits = runner.compute(cold(slots[: len(prompt)], prompt)).logits
    while len(tokens) < len(prompt) + 8:
        tokens.append(int(logits[0].argmax()))
        last = len(tokens) - 1
        plan = StepPlan(last, (Row(0, last, 1, 1),), np.array(tokens[-1:], np.int32), np.array([slots[last]], np.int32))
        logits = runner.compute(plan).logits
    assert tokens[len(prompt) :] == wanted
