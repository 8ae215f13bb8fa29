"""A tiny random model whose tokens are bytes, as a folder that `rtk serve --model` takes. See bench/soak.py."""

import json
from pathlib import Path

SPECIAL = ("<|im_start|>", "<|im_end|>")
CONTEXT = 1024
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write(folder: Path) -> None:
    """Write the model's files into an empty folder."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    sizes = {
        "vocab_size": len(SPECIAL) + 256,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.3,
    }
    config = AutoConfig.for_model("llama", **sizes, bos_token_id=None, eos_token_id=1, pad_token_id=0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    _tokenizer().save(str(folder / "tokenizer.json"))
    named = {"eos_token": SPECIAL[1], "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(named), encoding="utf-8")


def _tokenizer():
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate((*SPECIAL, *letters))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer
