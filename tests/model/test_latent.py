"""Models of latent attention: served by latents, they answer what transformers' own, expanded attention answers."""

import numpy as np
import pytest
import torch
from tiny_models import make_runner

from rtk.errors import ModelError
from rtk.model.latent import use_latents
from rtk.model.loader import read_outline, refuse_unservable
from rtk.model.probe import probe
from rtk.plugin import KVShape
from rtk.schedule.batch import Row, StepPlan, TableWrite

BOTH = ("mha", "mla")
KINDS = [
    *("deepseek_v2", "deepseek_v2 lite", "deepseek_v3", "deepseek_v3 yarn", "deepseek_v3 halves"),
    *("glm4_moe_lite", "youtu", "axk1", "minicpm3", "longcat_flash"),
]


def step(runner, *parts, writes=()):
    """Logits of every token of parts (table row, first position, tokens, slots), part by part."""
    rows = tuple(Row(row, start, len(tokens), len(tokens)) for row, start, tokens, _ in parts)
    tokens, slots = (np.concatenate([part[i] for part in parts]).astype(np.int32) for i in (2, 3))
    logits = runner.compute(StepPlan(0, rows, tokens, slots, writes=writes)).logits
    return logits.split([len(part[2]) for part in parts])


@pytest.mark.parametrize("kind", KINDS)
def test_chunked_mixed_and_cached_logits_are_those_of_transformers(zoo, kind):
    random = np.random.default_rng(len(kind))
    a, b = (random.integers(1, 99, n) for n in (30, 20))
    c = np.concatenate([a[:16], b])
    slots = random.permutation(np.arange(1, 100))
    a_slots, b_slots, c_slots = slots[:30], slots[30:50], slots[50:70]
    runner = make_runner(zoo.load(kind))
    got_a, got_b = [*step(runner, (3, 0, a[:11], a_slots[:11]))], []
    for part, other in ((slice(11, 12), slice(0, 7)), (slice(12, 30), slice(7, 8)), (None, slice(8, 20))):
        parts = [(5, other.start, b[other], b_slots[other])]
        parts += [] if part is None else [(3, part.start, a[part], a_slots[part])]
        found, *rest = step(runner, *parts)
        got_b.append(found)
        got_a += rest
    cached = TableWrite(1, 0, a_slots[:16].astype(np.int32))
    (got_c,) = step(runner, (1, 16, c[16:], c_slots), writes=(cached,))
    eager = zoo.eager(kind)
    for got, ids in ((torch.cat(got_a), a), (torch.cat(got_b), b), (got_c, c)):
        wanted = eager(torch.from_numpy(ids)[None]).logits[0, -len(got) :]
        assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_keeps_one_latent_where_the_backend_knows_them(zoo, kind):
    loaded = zoo.load(kind)
    assert probe(loaded).shape == KVShape(2, 4, 16, 12, 4)
    assert probe(loaded, BOTH).shape == KVShape(2, 1, 24, 16, 4, mla=True)
    assert probe(zoo.load("llama"), BOTH).shape == KVShape(2, 2, 8, 8, 4)


def attention(loaded, layer=1):
    return loaded.model.model.layers[layer].self_attn


def test_no_weight_is_copied(zoo):
    loaded = zoo.load("deepseek_v3")
    assert use_latents(loaded.model)
    module = attention(loaded)
    for part in (module.expand_kv.keys, module.expand_kv.values):
        assert part.untyped_storage().data_ptr() == module.kv_b_proj.weight.untyped_storage().data_ptr()


class Quantised(torch.nn.Linear):
    """Stands for a linear module of another kind."""


def quantise(module):
    module.kv_b_proj.__class__ = Quantised


def add_bias(module):
    module.kv_b_proj.bias = torch.nn.Parameter(torch.zeros(80))


def scale_keys(module):
    original = module.expand_kv

    def scaled(latent, rotated):
        k, v = original(latent, rotated)
        return 1.2 * k, v

    module.expand_kv = scaled


def swap_the_parts_of_weights(module):
    parts = module.kv_b_proj.weight.view(4, 20, 16)
    original = module.expand_kv

    def swapped(latent, rotated):
        k, v = original(latent, rotated)
        v = (latent @ parts[:, :12].transpose(1, 2)).view_as(v)
        return k, v

    module.expand_kv = swapped


@pytest.mark.parametrize("change", [quantise, add_bias, scale_keys, swap_the_parts_of_weights])
def test_one_layer_that_latents_do_not_fit_keeps_all_from_them(zoo, change):
    loaded = zoo.load("deepseek_v3")
    change(attention(loaded))
    assert not use_latents(loaded.model)
    assert probe(loaded, BOTH).shape == KVShape(2, 4, 16, 12, 4)


def test_latents_in_half_types(zoo):
    for dtype in ("bfloat16", "float16"):
        needs = probe(zoo.load("deepseek_v3", dtype=dtype), BOTH)
        assert (needs.shape.mla, needs.dtype) == (True, dtype)


def test_a_model_that_was_asked_twice(zoo):
    loaded = zoo.load("deepseek_v3")
    assert probe(loaded, BOTH) == probe(loaded, BOTH)


def test_whether_latents_may_come_is_known_before_weights_are_read(zoo):
    found = {
        kind: read_outline(zoo.folder(kind), dtype="auto", device="cpu", trust_remote_code=False).mla
        for kind in ("llama", "deepseek_v3")
    }
    assert found == {"llama": False, "deepseek_v3": None}


@pytest.mark.parametrize(
    ("kind", "layers"),
    [
        *((kind, "indexed_attention") for kind in ("deepseek_v32", "glm_moe_dsa", "axk2", "hy_v4")),
        *((kind, "linear_attention") for kind in ("kimi_linear", "bailing_hybrid")),
    ],
)
def test_latents_beside_something_else_are_refused(kind, layers):
    from transformers import AutoConfig

    with pytest.raises(ModelError, match=f"model type '{kind}' cannot be served: it has {layers} layers; "):
        refuse_unservable(AutoConfig.for_model(kind))
