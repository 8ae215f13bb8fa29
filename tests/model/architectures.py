"""Which architectures are served, and which are refused and why: tiny configurations, and docs/models.md in data."""

from typing import Any, NamedTuple

from tiny_models import BASE, GPT2, MOE, ROPE

HEADS = BASE | {"head_dim": 8}
WINDOW = HEADS | {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = HEADS | {"num_experts_per_tok": 2, "num_experts": 4, "num_local_experts": 4, "moe_intermediate_size": 16}
ROUTED = EXPERTS | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 12,
    "v_head_dim": 12,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
}
SHARED = WINDOW | {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 99,
}
GPTJ = GPT2 | {"rotary_dim": 4, "bos_token_id": None, "eos_token_id": None}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
GEMMA3N = SHARED | {"laurel_rank": 4, "altup_num_inputs": 2, "activation_sparsity_pattern": [0.0] * 4}


def rope(kind: str, **values: Any) -> dict[str, Any]:
    return BASE | {"rope_parameters": ROPE | {"rope_type": kind, **values}}


class Served(NamedTuple):
    config: dict[str, Any]
    asks: str = ""
    """What it asks of an attention backend: features, and `latents` where they take the place of K/V of every head."""


SERVED = {
    "afmoe": Served(WINDOW | EXPERTS | {"num_dense_layers": 1}, "sliding_window"),
    "apertus": Served(BASE),
    "arcee": Served(BASE),
    "axk1": Served(ROUTED | LATENT, "latents"),
    "biogpt": Served(BASE),
    "bitnet": Served(BASE),
    "codegen": Served(GPTJ | {"n_ctx": 512}),
    "cohere": Served(BASE),
    "cohere2": Served(WINDOW, "sliding_window"),
    "cohere2_moe": Served(WINDOW | EXPERTS, "sliding_window"),
    "ctrl": Served({"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "dff": 48, "initializer_range": 0.3}),
    "cwm": Served(WINDOW | {"bos_token_id": 1}, "sliding_window"),
    "dbrx": Served(
        {"vocab_size": 99, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 512, "initializer_range": 0.3}
        | {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8}}
        | {"ffn_config": {"ffn_hidden_size": 16, "hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2}},
    ),
    "deepseek_v2": Served(ROUTED | LATENT | {"q_lora_rank": None, "topk_method": "greedy"}, "latents"),
    "deepseek_v3": Served(ROUTED | LATENT, "latents"),
    "dots1": Served(WINDOW | ROUTED | {"n_shared_experts": 1}, "sliding_window"),
    "ernie4_5": Served(BASE | {"use_bias": True}),
    "ernie4_5_moe": Served(BASE | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16}),
    "exaone": Served(BASE),
    "exaone4": Served(WINDOW, "sliding_window"),
    "exaone_moe": Served(WINDOW | EXPERTS | {"n_group": 1, "topk_group": 1}, "sliding_window"),
    "flex_olmo": Served(EXPERTS),
    "gemma, one K/V head": Served(HEADS | {"num_key_value_heads": 1}),
    "gemma2": Served(WINDOW | {"attn_logit_softcapping": 2.0}, "sliding_window softcap"),
    "gemma3": Served(
        {"text_config": WINDOW, "vision_config": VISION | {"image_size": 8, "patch_size": 4}, "mm_tokens_per_image": 4}
        | {"image_token_index": 98, "boi_token_index": 97, "eoi_token_index": 96, "eos_token_id": None},
        "sliding_window",
    ),
    "gemma3_text": Served(WINDOW, "sliding_window"),
    "gemma3n_text, K/V of some layers shared": Served(GEMMA3N, "sliding_window"),
    "gemma4_text, K/V of some layers shared": Served(
        SHARED | {"global_head_dim": 8, "num_global_key_value_heads": 2}, "sliding_window"
    ),
    "glm": Served(HEADS | {"attention_bias": True}),
    "glm4": Served(HEADS),
    "glm4_moe": Served(ROUTED | {"use_qk_norm": True}),
    "glm4_moe_lite": Served(ROUTED | LATENT, "latents"),
    "gpt2": Served(GPT2),
    "gpt_bigcode, one K/V head": Served(GPT2),
    "gpt_neox": Served(BASE | {"rotary_pct": 0.5}),
    "gpt_oss": Served(WINDOW | MOE, "sinks sliding_window"),
    "gptj": Served(GPTJ),
    "granite": Served(BASE | {"residual_multiplier": 0.5, "attention_multiplier": 0.2, "logits_scaling": 3.0}),
    "granitemoe": Served(EXPERTS),
    "granitemoehybrid, attention layers only": Served(
        EXPERTS
        | {"layer_types": ["attention"] * 2, "shared_intermediate_size": 24, "mamba_n_heads": 4, "mamba_d_head": 16}
    ),
    "granitemoeshared": Served(EXPERTS | {"shared_intermediate_size": 24}),
    "helium": Served(HEADS),
    "hunyuan_v1_dense": Served(HEADS),
    "hunyuan_v1_moe": Served(EXPERTS | {"moe_topk": 2}),
    "internlm3": Served(BASE | {"qkv_bias": True, "bias": True}),
    "jais2": Served(BASE),
    "jetmoe": Served(EXPERTS | {"kv_channels": 8}),
    "llama": Served(BASE | {"attention_bias": True, "mlp_bias": True}),
    "llama, one K/V head, tied embeddings": Served(BASE | {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "llama, rope dynamic": Served(rope("dynamic", factor=4.0)),
    "llama, rope linear": Served(rope("linear", factor=4.0)),
    "llama, rope llama3": Served(
        rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
    ),
    "llama, rope yarn": Served(rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    "longcat_flash": Served(
        ROUTED
        | LATENT
        | {"num_layers": 2, "ffn_hidden_size": 32, "expert_ffn_hidden_size": 16, "moe_topk": 2, "zero_expert_num": 2},
        "latents",
    ),
    "minicpm3": Served(BASE | LATENT, "latents"),
    "ministral": Served(WINDOW, "sliding_window"),
    "ministral3": Served(HEADS),
    "mistral": Served(HEADS | {"sliding_window": None}),
    "mistral, window": Served(HEADS | {"sliding_window": 7}, "sliding_window"),
    "mixtral": Served(EXPERTS),
    "mixtral, window": Served(EXPERTS | {"sliding_window": 7}, "sliding_window"),
    "modernbert-decoder": Served(
        BASE | {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 1, "local_attention": 14},
        "sliding_window",
    ),
    "nanochat": Served(BASE),
    "nemotron": Served(BASE),
    "olmo": Served(BASE | {"clip_qkv": 1.5}),
    "olmo2": Served(BASE),
    "olmo3": Served(WINDOW, "sliding_window"),
    "olmoe": Served(EXPERTS),
    "opt": Served(BASE | {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "persimmon": Served(BASE),
    "phi": Served(BASE | {"partial_rotary_factor": 0.5, "qk_layernorm": True}),
    "phi3": Served(BASE | {"sliding_window": 7}, "sliding_window"),
    "phi3, rope longrope, up to its original length": Served(
        rope("longrope", short_factor=[1.0, 1.5, 2.0, 2.5], long_factor=[3.0] * 4)
        | {"original_max_position_embeddings": 32}
    ),
    "phimoe": Served(EXPERTS),
    "qwen2": Served(BASE),
    "qwen2, window from max_window_layers on": Served(
        BASE | {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}, "sliding_window"
    ),
    "qwen2_moe": Served(EXPERTS | {"shared_expert_intermediate_size": 24}),
    "qwen3, heads wider than hidden_size": Served(BASE | {"head_dim": 16}),
    "qwen3_moe": Served(EXPERTS),
    "sarvam_mla": Served(ROUTED | LATENT, "latents"),
    "sarvam_moe": Served(ROUTED),
    "seed_oss": Served(HEADS | {"attention_bias": True}),
    "smollm3": Served(BASE | {"no_rope_layers": [1, 0]}),
    "solar_open": Served(ROUTED),
    "stablelm": Served(BASE | {"use_qkv_bias": True, "qk_layernorm": True}),
    "starcoder2": Served(BASE | {"sliding_window": 7}, "sliding_window"),
    "vaultgemma": Served(WINDOW | {"attn_logit_softcapping": 2.0}, "sliding_window softcap"),
    "youtu": Served(BASE | LATENT, "latents"),
}
"""By `model_type`, and after a comma what is special about the configuration."""


class Refused(NamedTuple):
    config: dict[str, Any]
    reason: str


STATE = "it has linear_attention layers; "
BYPASS = "the attention function was called 0 times for 2 layers"
ENCODER = "it has an encoder; "
SPARSE = "it has indexed_attention layers; "
NO_MODEL = "transformers has no causal language model of that type"
NO_SEAM = "its attention cannot be replaced through transformers' attention interface"
AHEAD = "layer 0 attends to later tokens too"
REFUSED = {
    "bamba": Refused(BASE | {"mamba_n_heads": 4, "mamba_d_head": 16}, STATE),
    "bart": Refused({}, ENCODER),
    "bert": Refused(BASE, AHEAD),
    "bloom": Refused({"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4}, BYPASS),
    "cpmant": Refused(BASE | {"dim_head": 8, "dim_ff": 48}, BYPASS),
    "deepseek_v32": Refused({}, SPARSE),
    "deepseek_v4": Refused({}, "it has compressed_sparse_attention, heavily_compressed_attention layers; "),
    "diffllama": Refused(BASE, "the attention function was called 4 times for 2 layers, "),
    "doge": Refused(BASE, "its attention wants attention_mask, which rtk's does not know"),
    "falcon": Refused({"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}, NO_SEAM),
    "falcon_h1": Refused({}, "it has hybrid layers; "),
    "falcon_mamba": Refused({}, STATE),
    "gemma4_text, global layers with wider heads": Refused(
        SHARED | {"global_head_dim": 16}, "its layers differ in the shape of their K/V"
    ),
    "glm_moe_dsa": Refused({}, SPARSE),
    "gpt_neo": Refused(
        {"vocab_size": 99, "hidden_size": 32, "num_layers": 2, "num_heads": 4}
        | {"attention_types": [[["global", "local"], 1]]},
        NO_SEAM,
    ),
    "gpt_neox_japanese": Refused(BASE, BYPASS),
    "granitemoehybrid": Refused({}, STATE),
    "hrm_text": Refused(BASE, "the attention function was called 16 times for 16 layers, "),
    "jamba": Refused({}, STATE),
    "kimi_linear": Refused({}, STATE),
    "lfm2": Refused(BASE | {"layer_types": ["conv", "full_attention"]}, "it has conv layers; "),
    "llama4": Refused({}, "it has chunked_attention layers; "),
    "llama4_text": Refused({}, "it has chunked_attention layers; "),
    "llava": Refused({}, NO_MODEL),
    "mamba": Refused({}, STATE),
    "mamba2": Refused({}, STATE),
    "mimo_v2_flash": Refused(WINDOW | EXPERTS, "its layers differ in the shape of their K/V"),
    "minimax": Refused({}, STATE),
    "mistral3": Refused({}, NO_MODEL),
    "mpt": Refused(
        {"vocab_size": 99, "d_model": 32, "n_layers": 2, "n_heads": 4}, "a forward without cache and mask fails: "
    ),
    "nemotron_h": Refused({}, "it has linear_attention, mlp, moe layers; "),
    "olmo_hybrid": Refused({}, STATE),
    "openai-gpt": Refused(GPT2, BYPASS),
    "phimoe, window": Refused(EXPERTS | {"sliding_window": 9}, "asks for no window, but its mask does not let"),
    "qwen2_5_vl": Refused({}, NO_MODEL),
    "qwen3_5": Refused({}, STATE),
    "qwen3_5_moe": Refused({}, STATE),
    "qwen3_next": Refused({}, STATE),
    "recurrent_gemma": Refused({}, STATE),
    "roberta": Refused(BASE, AHEAD),
    "rwkv": Refused({}, "it keeps a recurrent state beside K/V"),
    "t5": Refused({}, ENCODER),
    "vit": Refused({}, NO_MODEL),
    "whisper": Refused({}, ENCODER),
    "xglm": Refused({"vocab_size": 99, "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4}, BYPASS),
    "xlstm": Refused({}, "it keeps a recurrent state beside K/V"),
    "zamba2": Refused({}, "it has hybrid, linear_attention layers; "),
}
"""Likewise, with the reason. An empty configuration is refused by config.json alone, in the sizes of its kind."""
