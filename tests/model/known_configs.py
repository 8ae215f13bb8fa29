"""What config.json of well-known models says, as far as it matters, and whether rtk takes them by it."""

from typing import Any, NamedTuple


class Known(NamedTuple):
    config: dict[str, Any]
    taken: int | str
    """Tokens of context, or why it is refused."""


BF16 = {"torch_dtype": "bfloat16"}


def dense(kind: str, hidden: int, layers: int, heads: tuple[int, int], inner: int, **values: Any) -> dict[str, Any]:
    """`heads` of queries and of K/V."""
    return BF16 | {
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "intermediate_size": inner,
        **values,
    }


def code(module: str, kind: str) -> dict[str, Any]:
    """Also there in Python, beside the weights."""
    names = {"AutoConfig": f"configuration_{module}.{kind}Config", "AutoModelForCausalLM": f"modeling_{module}.{kind}"}
    return {"auto_map": names}


def experts(count: int, chosen: int, inner: int, **values: Any) -> dict[str, Any]:
    return {"num_experts": count, "num_experts_per_tok": chosen, "moe_intermediate_size": inner, **values}


FACTORS = {"short_factor": [1.0] * 48, "long_factor": [1.5] * 48, "type": "longrope"}
"""Not the real numbers: their count is what matters."""
NEEDS_CODE = "it needs Python code that comes with it; set model.trust_remote_code to run that code"
CHUNKED = "it has chunked_attention layers"
LINEAR = "it has linear_attention layers"
NO_MODEL = "transformers has no causal language model of that type"
KNOWN = {
    "Command R v01": Known(
        dense("cohere", 8192, 40, (64, 64), 22528, vocab_size=256000, max_position_embeddings=8192)
        | {"torch_dtype": "float16", "rope_theta": 8000000.0, "logit_scale": 0.0625, "use_qk_norm": False},
        8192,
    ),
    "DeepSeek-V3": Known(
        dense("deepseek_v3", 7168, 61, (128, 128), 18432, vocab_size=129280, max_position_embeddings=163840)
        | code("deepseek", "DeepseekV3")
        | {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
        | {"n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048}
        | {"n_group": 8, "topk_group": 4, "first_k_dense_replace": 3, "topk_method": "noaux_tc"}
        | {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}}
        | {
            "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
            | {"beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}
        },
        163840,
    ),
    "Falcon-Mamba-7B": Known({"model_type": "falcon_mamba", "hidden_size": 4096, "num_hidden_layers": 64}, LINEAR),
    "Gemma 2 9B": Known(
        dense("gemma2", 3584, 42, (16, 8), 14336, vocab_size=256000, head_dim=256, max_position_embeddings=8192)
        | {"sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        8192,
    ),
    "Gemma 3 1B": Known(
        dense("gemma3_text", 1152, 26, (4, 1), 6912, vocab_size=262144, head_dim=256, max_position_embeddings=32768)
        | {"sliding_window": 512, "sliding_window_pattern": 6, "rope_theta": 1e6, "rope_local_base_freq": 10000},
        32768,
    ),
    "Gemma 3 4B": Known(
        BF16
        | {"model_type": "gemma3", "image_token_index": 262144, "mm_tokens_per_image": 256}
        | {
            "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34}
            | {"intermediate_size": 10240, "sliding_window": 1024, "rope_scaling": {"factor": 8, "rope_type": "linear"}}
        }
        | {"vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152, "num_hidden_layers": 27}},
        131072,
    ),
    "GPT-OSS 20B": Known(
        dense("gpt_oss", 2880, 24, (64, 8), 2880, vocab_size=201088, head_dim=64, max_position_embeddings=131072)
        | {"layer_types": ["sliding_attention", "full_attention"] * 12, "sliding_window": 128, "rope_theta": 150000}
        | {"num_local_experts": 32, "num_experts_per_tok": 4, "quantization_config": {"quant_method": "mxfp4"}}
        | {
            "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
            | {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
        },
        131072,
    ),
    "Kimi K2": Known(dense("kimi_k2", 7168, 61, (64, 64), 18432) | code("deepseek", "DeepseekV3"), NEEDS_CODE),
    "LFM2 1.2B": Known(
        BF16
        | {"model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32}
        | {"num_key_value_heads": 8, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "vocab_size": 65536},
        "it has conv layers",
    ),
    "Llama 3.1 8B": Known(
        dense("llama", 4096, 32, (32, 8), 14336, vocab_size=128256, max_position_embeddings=131072)
        | {"rope_theta": 500000.0, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009]}
        | {
            "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
            | {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        },
        131072,
    ),
    "Llama 4 Scout": Known(
        BF16
        | {"model_type": "llama4"}
        | {
            "text_config": {"model_type": "llama4_text", "attention_chunk_size": 8192, "num_hidden_layers": 48}
            | {"hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8, "num_local_experts": 16}
        },
        CHUNKED,
    ),
    "Mamba 2.8B": Known({"model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64}, LINEAR),
    "Mistral 7B v0.1": Known(
        dense("mistral", 4096, 32, (32, 8), 14336, vocab_size=32000, max_position_embeddings=32768)
        | {"sliding_window": 4096, "rope_theta": 10000.0},
        32768,
    ),
    "Mistral 7B v0.3": Known(
        dense("mistral", 4096, 32, (32, 8), 14336, vocab_size=32768, max_position_embeddings=32768)
        | {"sliding_window": None, "rope_theta": 1000000.0},
        32768,
    ),
    "Mistral Small 3.1": Known(
        BF16
        | {"model_type": "mistral3", "vision_config": {"model_type": "pixtral", "hidden_size": 1024}}
        | {"text_config": {"model_type": "mistral", "hidden_size": 5120, "num_hidden_layers": 40}},
        NO_MODEL,
    ),
    "Mixtral 8x7B": Known(
        dense("mixtral", 4096, 32, (32, 8), 14336, vocab_size=32000, max_position_embeddings=32768)
        | {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None, "rope_theta": 1000000.0},
        32768,
    ),
    "OLMo 2 7B": Known(
        dense("olmo2", 4096, 32, (32, 32), 11008, vocab_size=100352, max_position_embeddings=4096)
        | {"rope_theta": 500000, "torch_dtype": "float32"},
        4096,
    ),
    "Phi-3 mini 4k": Known(
        dense("phi3", 3072, 32, (32, 32), 8192, vocab_size=32064, max_position_embeddings=4096)
        | {"original_max_position_embeddings": 4096, "rope_scaling": None, "sliding_window": 2047}
        | code("phi3", "Phi3"),
        4096,
    ),
    "Phi-3 mini 128k": Known(
        dense("phi3", 3072, 32, (32, 32), 8192, vocab_size=32064, max_position_embeddings=131072)
        | {"original_max_position_embeddings": 4096, "rope_scaling": FACTORS, "sliding_window": 262144}
        | code("phi3", "Phi3"),
        4096,
    ),
    "Qwen2.5 7B": Known(
        dense("qwen2", 3584, 28, (28, 4), 18944, vocab_size=152064, max_position_embeddings=131072)
        | {"use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28, "rope_theta": 1000000.0},
        131072,
    ),
    "Qwen2.5-VL 7B": Known(
        dense("qwen2_5_vl", 3584, 28, (28, 4), 18944, rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]}),
        NO_MODEL,
    ),
    "Qwen3 8B": Known(
        dense("qwen3", 4096, 36, (32, 8), 12288, vocab_size=151936, head_dim=128, max_position_embeddings=40960)
        | {"use_sliding_window": False, "sliding_window": None, "max_window_layers": 36, "rope_theta": 1000000},
        40960,
    ),
    "Qwen3 30B-A3B": Known(
        dense("qwen3_moe", 2048, 48, (32, 4), 6144, vocab_size=151936, head_dim=128, max_position_embeddings=40960)
        | experts(128, 8, 768, decoder_sparse_step=1, mlp_only_layers=[], norm_topk_prob=True)
        | {"use_sliding_window": False, "sliding_window": None, "max_window_layers": 48, "rope_theta": 1000000.0},
        40960,
    ),
    "Qwen3-Next 80B-A3B": Known(
        dense("qwen3_next", 2048, 48, (16, 2), 5120, head_dim=256, max_position_embeddings=262144)
        | experts(512, 10, 512, full_attention_interval=4),
        LINEAR,
    ),
    "SmolLM3 3B": Known(
        dense("smollm3", 2048, 36, (16, 4), 11008, vocab_size=128256, max_position_embeddings=65536)
        | {"layer_types": ["full_attention"] * 36, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9}
        | {"use_sliding_window": False, "sliding_window": None, "rope_theta": 5000000.0},
        65536,
    ),
}
