"""Tiny random models, saved as checkpoints and loaded the way real ones are."""

import functools
from pathlib import Path

import torch

from rtk.cache.pool import KVPool
from rtk.model.loader import LoadedModel, load_model
from rtk.model.probe import Probe, probe
from rtk.model.runner import ModelRunner
from rtk.plugin.host import installed

BASE = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
GPT2 = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512, "initializer_range": 0.3}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LONGROPE = ROPE | {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
HALF_LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
MOE = {"num_experts_per_tok": 1, "num_local_experts": 2}
LATENT = BASE | {"num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 24, "v_head_dim": 12}
LATENT |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
EXPERTS = {"n_routed_experts": 2, "n_shared_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
EXPERTS |= {"n_group": 1, "topk_group": 1}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 512}
YARN |= {"mscale": 1.0, "mscale_all_dim": 1.0}
KINDS = {
    "llama": ("llama", BASE),
    "llama tied": ("llama", BASE | {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "qwen2": ("qwen2", BASE),
    "qwen3": ("qwen3", BASE | {"head_dim": 16}),
    "mistral": ("mistral", BASE | {"sliding_window": 7}),
    "gemma2": ("gemma2", BASE | {"head_dim": 8, "sliding_window": 8}),
    "granite": ("granite", BASE | {"residual_multiplier": 0.5}),
    "gpt2": ("gpt2", GPT2 | {"bos_token_id": None, "eos_token_id": None}),
    "gpt_oss": ("gpt_oss", BASE | MOE | {"head_dim": 8, "sliding_window": 8, "rope_parameters": ROPE}),
    "deepseek_v3": ("deepseek_v3", LATENT | {"q_lora_rank": None, "first_k_dense_replace": 2}),
    "deepseek_v3 yarn": ("deepseek_v3", LATENT | EXPERTS | {"first_k_dense_replace": 1, "rope_parameters": YARN}),
    "deepseek_v3 halves": ("deepseek_v3", LATENT | {"first_k_dense_replace": 2, "rope_interleave": False}),
    "deepseek_v2": ("deepseek_v2", LATENT | EXPERTS | {"first_k_dense_replace": 1}),
    "deepseek_v2 lite": ("deepseek_v2", LATENT | {"q_lora_rank": None, "first_k_dense_replace": 2}),
    "glm4_moe_lite": ("glm4_moe_lite", LATENT | EXPERTS),
    "youtu": ("youtu", LATENT),
    "axk1": ("axk1", LATENT | EXPERTS),
    "minicpm3": ("minicpm3", LATENT | {"tie_word_embeddings": False, "scale_emb": 1, "dim_model_base": 32}),
    "longcat_flash": (
        "longcat_flash",
        {k: v for k, v in LATENT.items() if k != "num_hidden_layers"}
        | {"num_layers": 1, "ffn_hidden_size": 48, "expert_ffn_hidden_size": 16, "head_dim": 8}
        | {"n_routed_experts": 2, "num_experts_per_tok": 2, "zero_expert_num": 1},
    ),
    "lfm2": ("lfm2", BASE | {"layer_types": ["conv", "full_attention"]}),
    "qwen3_next": ("qwen3_next", BASE | HALF_LINEAR | {"num_experts": 2, "num_experts_per_tok": 1}),
    "llama4": ("llama4_text", BASE | MOE | {"head_dim": 8, "intermediate_size_mlp": 32}),
    "llama4 unchunked": (
        "llama4_text",
        BASE
        | MOE
        | {"head_dim": 8, "intermediate_size_mlp": 32, "no_rope_layers": [0, 0], "floor_scale": 16}
        | {"layer_types": ["full_attention"] * 2, "attention_chunk_size": 4096},
    ),
    "phimoe": ("phimoe", BASE | MOE | {"sliding_window": 9}),
    "mamba": ("mamba", {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2}),
    "t5": ("t5", {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4}),
    "vit": ("vit", {}),
    "bert": ("bert", BASE),
    "bloom": ("bloom", {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "mpt": ("mpt", {"vocab_size": 99, "d_model": 32, "n_layers": 2, "n_heads": 4}),
    "falcon": ("falcon", {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}),
    "longrope": ("phi3", BASE | {"rope_parameters": LONGROPE, "original_max_position_embeddings": 512}),
    "dynamic": ("llama", BASE | {"rope_parameters": ROPE | {"rope_type": "dynamic", "factor": 2.0}}),
}


class Zoo:
    """Checkpoints and models by name, each made once for a test session."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.folder = functools.cache(self._save)

    def config(self, kind: str):
        """The transformers configuration of a tiny model."""
        from transformers import AutoConfig

        model_type, values = KINDS[kind]
        return AutoConfig.for_model(model_type, **values)

    def _save(self, kind: str) -> Path:
        from transformers import AutoModelForCausalLM

        torch.manual_seed(0)
        folder = self._root / kind
        AutoModelForCausalLM.from_config(self.config(kind)).save_pretrained(folder)
        return folder

    def load(self, kind: str, **settings) -> LoadedModel:
        """A fresh copy, loaded by rtk."""
        return load_model(self.folder(kind), **settings)

    def eager(self, kind: str):
        """The same weights as transformers runs them on its own."""
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(
            self.folder(kind), dtype=torch.float32, attn_implementation="eager"
        ).eval()


def make_runner(
    loaded: LoadedModel,
    needs: Probe | None = None,
    *,
    slots=2048,
    page_size=1,
    rows=8,
    context_length=2048,
    kinds=("mha", "mla"),
    backend=None,
) -> ModelRunner:
    """A runner on the reference backend whose pool is full of NaN. `needs` are the model's, where it was probed."""
    entry = installed().get("attention", "torch")
    backend = backend or entry.build(entry.plugin.options())
    needs = needs or probe(loaded, kinds)
    pool = KVPool(backend.layout(needs.shape, page_size, needs.dtype), slots, loaded.device)
    for layer in range(needs.shape.layers):
        for buffer in pool.layer(layer).values():
            buffer.fill_(torch.nan)
    return ModelRunner(loaded, backend, pool, rows=rows, context_length=context_length)
