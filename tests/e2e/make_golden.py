"""Writes golden.json: what transformers' own `generate` answers to the prompts, one by one, greedily.

    python tests/e2e/make_golden.py

float32, the model's own attention (eager), no batching: nothing of rtk but the model folder. Takes minutes.
"""

import hashlib
import importlib.metadata
import json
from pathlib import Path

import torch
from prompts import NEW_TOKENS, prompt_ids
from transformers import AutoModelForCausalLM, AutoTokenizer

from rtk.model.store import fetch

GOLDEN = Path(__file__).with_name("golden.json")


def main() -> None:
    folder = fetch()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    prompts = prompt_ids(lambda text: tokenizer.encode(text, add_special_tokens=False))
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=0,
        )
        answers.append(out[0, len(prompt) :].tolist())
        print(f"{len(prompt):4} tokens: {tokenizer.decode(answers[-1])[:70]!r}")  # noqa: T201
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    made_with = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    GOLDEN.write_text(
        json.dumps({"weights_sha256": weights, "made_with": made_with, "prompts": prompts, "answers": answers}) + "\n"
    )


if __name__ == "__main__":
    main()
