"""What the loader says about models, and which folders and kinds it refuses."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import ROPE

from rtk.errors import ConfigError, ModelError
from rtk.model.bridge import IMPLEMENTATION
from rtk.model.loader import ModelFacts, Outline, load_model, read_outline, refuse_unservable


@pytest.fixture
def folder(zoo, tmp_path):
    """A checkpoint to tamper with."""
    return shutil.copytree(zoo.folder("llama"), tmp_path / "model")


def change(path, **values):
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **values}))


def refusal(folder, **settings) -> str:
    with pytest.raises(ModelError) as error:
        load_model(folder, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_facts_of_a_model(folder):
    change(folder / "config.json", bos_token_id=1, eos_token_id=2)
    (folder / "generation_config.json").unlink()
    loaded = load_model(folder)
    assert loaded.facts == ModelFacts(
        kind="llama",
        vocab_size=99,
        context_length=2048,
        bos_token=1,
        end_tokens=(2,),
        generation_config={},
        dtype="float32",
        parameter_bytes=sum(t.nbytes for t in load_file(folder / "model.safetensors").values()),
    )
    assert loaded.device == torch.device("cpu")
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert loaded.model.config._attn_implementation == IMPLEMENTATION


def test_the_generation_configuration_goes_before_the_configuration(folder):
    change(folder / "config.json", eos_token_id=2)
    path = folder / "generation_config.json"
    path.unlink()
    values = {"eos_token_id": [7, 5, 7], "do_sample": True, "temperature": 0.6, "bos_token_id": 3}
    change(path, top_k=None, **values)
    facts = load_model(folder).facts
    assert facts.end_tokens == (5, 7)
    assert facts.bos_token == 3
    assert facts.generation_config == values


def test_a_model_may_have_no_end_token(folder):
    assert load_model(folder).facts.end_tokens == ()


def test_tied_weights_are_counted_once(zoo):
    facts = zoo.load("llama tied").facts
    assert facts.parameter_bytes == sum(
        t.nbytes for t in load_file(zoo.folder("llama tied") / "model.safetensors").values()
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_the_type_is_as_asked(folder, dtype):
    loaded = load_model(folder, dtype=dtype)
    assert loaded.facts.dtype == dtype
    assert loaded.model.dtype == getattr(torch, dtype)


def test_auto_is_float32_on_a_cpu_whatever_the_checkpoint_says(folder):
    weights = load_file(folder / "model.safetensors")
    halved = {name: tensor.bfloat16() for name, tensor in weights.items()}
    save_file(halved, folder / "model.safetensors", metadata={"format": "pt"})
    change(folder / "config.json", dtype="bfloat16")
    assert load_model(folder).facts.dtype == "float32"


def test_an_unknown_type(folder):
    with pytest.raises(ConfigError, match="unknown dtype 'int8'; choose auto, float64, float32, bfloat16, float16"):
        load_model(folder, dtype="int8")


def test_no_folder(tmp_path):
    assert "holds no model: there is no config.json in it" in refusal(tmp_path / "nowhere")


def test_other_weight_formats_are_not_loaded(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "holds no *.safetensors file" in refusal(folder)


def test_a_truncated_file(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    assert refusal(folder).startswith(f"{folder} cannot be loaded: ")


def test_a_broken_configuration(folder):
    change(folder / "config.json", num_attention_heads="four")
    message = refusal(folder)
    assert message.startswith(f"{folder} cannot be loaded: ")
    assert "'num_attention_heads' expected int, got str" in message  # the second line of transformers'


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "is no JSON: JSONDecodeError: Expecting property name"),
        (b"[1]", "must hold a JSON object, and holds a list"),
        (b"null", "must hold a JSON object, and holds a NoneType"),
        (b"\xff", "is no UTF-8 text: invalid start byte at 0"),
        (b"[" * 100_000, "is no JSON: RecursionError"),
    ],
    ids=["broken", "list", "null", "binary", "deep"],
)
def test_files_that_hold_no_object(folder, name, content, problem):
    (folder / name).write_bytes(content)
    assert refusal(folder).startswith(f"{folder / name} {problem}")


@pytest.mark.parametrize("ends", ["5", ["a", 5], [[1], [2]], 1.5, True, {"a": 1}], ids=str)
def test_end_tokens_are_ids(folder, ends):
    change(folder / "generation_config.json", eos_token_id=ends)
    assert refusal(folder) == f"{folder}: eos_token_id = {ends!r}: must be a token id or a list of them"


def test_the_first_token_is_an_id(folder):
    change(folder / "generation_config.json", bos_token_id="x")
    assert refusal(folder) == f"{folder}: bos_token_id = 'x': must be a token id"


def test_end_tokens_outside_of_the_vocabulary_end_nothing(folder, caplog):
    change(folder / "generation_config.json", eos_token_id=[99, 98, -1])
    assert load_model(folder).facts.end_tokens == (98,)
    assert [record.getMessage() for record in caplog.records] == [
        f"{folder}: eos_token_id without effect, outside of the vocabulary of 99: [-1, 99]"
    ]


@pytest.mark.parametrize("length", [0, -5])
def test_a_context_length_that_is_none(folder, length):
    change(folder / "config.json", max_position_embeddings=length)
    assert refusal(folder) == f"{folder}: max_position_embeddings = {length} in config.json: must be at least 1"


def test_weights_of_an_unknown_quantization(folder):
    change(folder / "config.json", quantization_config={"quant_method": "foo"})
    assert "its weights are quantized in a way that transformers cannot read" in refusal(folder)


def test_weights_that_the_configuration_does_not_know_are_one_warning(folder, caplog, capfd):
    change(folder / "config.json", num_hidden_layers=1, layer_types=None)
    load_model(folder)
    [message] = [record.getMessage() for record in caplog.records]
    assert "its files hold weights that the model by config.json does not have, so without effect: model." in message
    assert message.endswith(" and 8 more")
    assert capfd.readouterr() == ("", "")


def test_missing_weights_are_not_made_up(folder):
    weights = load_file(folder / "model.safetensors")
    names = [name for name in weights if "layers.1.mlp" in name]
    kept = {name: tensor for name, tensor in weights.items() if name not in names}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    assert f"is incomplete: its files hold no weight {min(names)!r} and {len(names) - 1} more" in refusal(folder)


def test_weights_of_another_shape(folder, capfd):
    change(folder / "config.json", intermediate_size=40)
    width = load_file(folder / "model.safetensors")["model.layers.0.mlp.down_proj.weight"].shape[1]
    assert refusal(folder) == (
        f"{folder} does not fit its config.json: weight 'model.layers.0.mlp.down_proj.weight' is 32 x {width} in the "
        "files and 32 x 40 by config.json and 5 more; fetch it again"
    )
    assert capfd.readouterr() == ("", "")


def test_code_of_strangers_is_not_run(folder):
    (folder / "configuration_x.py").write_text("raise SystemExit('ran')")
    change(folder / "config.json", model_type="x", auto_map={"AutoConfig": "configuration_x.X"})
    assert "set model.trust_remote_code" in refusal(folder)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("lfm2", "it has conv layers"),
        ("qwen3_next", "it has linear_attention layers"),
        ("llama4", "it has chunked_attention layers"),
        ("mamba", "it has linear_attention layers"),
        ("t5", "it has an encoder"),
        ("vit", "transformers has no causal language model of that type"),
    ],
)
def test_kinds_that_cannot_be_served_correctly(zoo, kind, reason):
    config = zoo.config(kind)
    with pytest.raises(ModelError) as error:
        refuse_unservable(config)
    assert str(error.value).startswith(f"model type {config.model_type!r} cannot be served: {reason}")


def test_a_kind_is_refused_before_its_weights_are_read(zoo, tmp_path):
    zoo.config("lfm2").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    assert "it has conv layers" in refusal(tmp_path)


def test_a_state_beside_the_cache(zoo):
    config = zoo.config("qwen3_next")
    config.layer_types = None
    with pytest.raises(ModelError, match="it keeps a recurrent state beside K/V"):
        refuse_unservable(config)
    config.layer_types = ["full_attention", "full_attention"]
    refuse_unservable(config)


def outline_of(folder) -> Outline:
    return read_outline(folder, dtype="auto", device="cpu", trust_remote_code=False)


def test_a_rope_that_depends_on_the_batch_is_served_as_far_as_it_does_not(zoo, caplog):
    folder = zoo.folder("longrope")
    assert load_model(folder).facts.context_length == 512
    assert not caplog.messages
    assert outline_of(folder).context_length == 512
    assert caplog.messages == [
        f"{folder}: served up to 512 of its 2048 tokens: one longer sequence changes rope type 'longrope' for all "
        "others"
    ]


def test_a_rope_that_depends_on_the_batch_past_the_context_only(zoo, caplog):
    assert outline_of(zoo.folder("dynamic")).context_length == 2048
    assert not caplog.messages


def test_a_rope_of_one_type_of_layers(folder, caplog):
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 64}
    ropes = {"sliding_attention": ROPE, "full_attention": ROPE | {"rope_type": "longrope", **factors}}
    change(folder / "config.json", model_type="gemma3_text", rope_parameters=ropes)
    assert outline_of(folder).context_length == 64
    assert len(caplog.messages) == 1


def test_an_attention_that_cannot_be_replaced(zoo):
    assert "its attention cannot be replaced" in refusal(zoo.folder("falcon"))


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral", "gemma2", "gpt2", "gpt_oss", "deepseek_v3"])
def test_kinds_that_can_be_served(zoo, kind):
    refuse_unservable(zoo.config(kind))
