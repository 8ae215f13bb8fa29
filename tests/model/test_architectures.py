"""Every architecture that is served gives what transformers' own generate gives; the others are refused with a reason.

Weights are random, biases and norms too. The way is the real one: checkpoint, loader, probe, fused layers, packed
weights, runner.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import REFUSED, SERVED
from known_configs import KNOWN
from tiny_models import make_runner
from transformers import AutoConfig, AutoModelForCausalLM

from rtk.errors import ModelError
from rtk.model.fused import fuse_layers
from rtk.model.linear import pack_linears
from rtk.model.loader import load_model, read_outline
from rtk.model.probe import probe
from rtk.model.runner import ModelRunner
from rtk.schedule.batch import Row, StepPlan, TableWrite

NEW = 4
PAGE = 4
CACHED = 12
"""Tokens of the third prompt that the first one has computed."""
STEPS = (
    ((0, 10),),
    ((0, 13), (1, 4)),
    ((0, 1), (1, 5)),
    ((1, 1), (0, 1), (2, 3)),
    ((2, 4), (0, 1), (1, 1)),
)
"""How many tokens of which request a step computes; afterwards, the next of all that are not done."""


def prompts() -> list[list[int]]:
    random = np.random.default_rng(7)
    first, second, tail = (random.integers(1, 96, length).tolist() for length in (23, 9, 7))
    return [first, second, first[:CACHED] + tail]


def with_random_weights(model_type: str, values: dict):
    """transformers' own: biases and norms would be zeros and ones."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **values), attn_implementation="eager")
    for tensor in model.state_dict().values():
        if tensor.ndim == 1 and tensor.is_floating_point():
            tensor += 0.3 * torch.randn_like(tensor)
    return model.eval()


def generated(model, prompt: list[int]) -> tuple[list[int], torch.Tensor]:
    """What transformers generates greedily, and the logits [NEW, vocab] behind it."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        min_new_tokens=NEW,
        max_new_tokens=NEW,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return out.sequences[0, len(prompt) :].tolist(), torch.cat(out.logits)


def served(runner: ModelRunner) -> list[tuple[list[int], torch.Tensor]]:
    """What the runner gives for each prompt: in chunks, beside other requests, behind slots that another one filled."""
    pages = np.random.default_rng(1).permutation(np.arange(1, 28, dtype=np.int32)).reshape(3, -1, 1)
    slots = (pages * PAGE + np.arange(PAGE, dtype=np.int32)).reshape(3, -1)
    slots[2, :CACHED] = slots[0, :CACHED]
    tokens, computed, logits = prompts(), [0, 0, CACHED], ([], [], [])
    steps = list(STEPS)
    while due := steps.pop(0) if steps else tuple((i, 1) for i in range(3) if len(logits[i]) < NEW):
        plan = StepPlan(
            step=0,
            rows=tuple(Row(i, computed[i], n, int(computed[i] + n == len(tokens[i]))) for i, n in due),
            tokens=np.concatenate([tokens[i][computed[i] : computed[i] + n] for i, n in due]).astype(np.int32),
            slots=np.concatenate([slots[i, computed[i] : computed[i] + n] for i, n in due]),
            writes=(TableWrite(2, 0, slots[2, :CACHED]),) if (2, 3) in due else (),
        )
        answers = iter(runner.compute(plan).logits)
        for row, (i, n) in zip(plan.rows, due, strict=True):
            computed[i] += n
            if row.samples:
                logits[i].append(next(answers))
                tokens[i].append(int(logits[i][-1].argmax()))
    return [(found[-NEW:], torch.stack(rows)) for found, rows in zip(tokens, logits, strict=True)]


@pytest.mark.parametrize("name", SERVED)
def test_it_gives_what_generate_gives(tmp_path: Path, name: str):
    model = with_random_weights(name.partition(",")[0], SERVED[name].config)
    model.save_pretrained(tmp_path)
    wanted = [generated(model, prompt) for prompt in prompts()]
    asked = set(SERVED[name].asks.split())
    for kinds in ({"mha", "mla"}, {"mha"}) if "latents" in asked else ({"mha", "mla"},):
        loaded = load_model(tmp_path)
        needs = probe(loaded, kinds)
        assert needs.features == asked - {"latents"}
        assert needs.shape.mla == ("latents" in asked and "mla" in kinds)
        fuse_layers(loaded)
        pack_linears(loaded)
        runner = make_runner(loaded, needs, slots=128, page_size=PAGE, rows=3, context_length=32)
        for (ids, logits), (own_ids, own) in zip(served(runner), wanted, strict=True):
            assert ids == own_ids
            assert (logits - own).norm() < 1e-4 * own.norm()


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(tmp_path: Path, name: str):
    kind = name.partition(",")[0]
    AutoConfig.for_model(kind, **REFUSED[name].config).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelError) as error:
        read_outline(tmp_path, dtype="auto", device="cpu", trust_remote_code=False)
        with_random_weights(kind, REFUSED[name].config).save_pretrained(tmp_path)
        probe(load_model(tmp_path))
    assert REFUSED[name].reason in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_model_by_its_config_json(tmp_path: Path, name: str):
    config, taken = KNOWN[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").touch()
    if isinstance(taken, str):
        with pytest.raises(ModelError) as error:
            read_outline(tmp_path, dtype="auto", device="cuda", trust_remote_code=False)
        assert taken in str(error.value)
    else:
        found = read_outline(tmp_path, dtype="auto", device="cuda", trust_remote_code=False)
        assert (found.kind, found.context_length, found.dtype) == (config["model_type"], taken, config["torch_dtype"])


def test_the_page_of_models_is_fresh():
    spec = importlib.util.spec_from_file_location("make_models", Path(__file__).parents[2] / "docs/make_models.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run 'make docs'"
