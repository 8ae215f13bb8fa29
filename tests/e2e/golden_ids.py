"""The golden ids, and what counts as equal to them."""

import json
from dataclasses import dataclass
from pathlib import Path

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())
PROMPTS, ANSWERS = GOLDEN["prompts"], GOLDEN["answers"]
NEAR_TIE = 1e-4
"""Distance of the two best float64 logits below which two right computations may choose differently."""


@dataclass
class Difference:
    prompt: int
    position: int
    margin: float


class Oracle:
    """Compares answers with the golden ids; where they part, asks the model in float64 how close the choice was."""

    def __init__(self, folder):
        self._folder = folder
        self._model = None

    def compare(self, answers, prompts=PROMPTS, expected=ANSWERS):
        """The differences that are near ties. Fails on any other."""
        near = []
        for i, (answer, right) in enumerate(zip(answers, expected, strict=True)):
            if list(answer) == right:
                continue
            at = next(j for j, (a, b) in enumerate(zip(answer, right, strict=True)) if a != b)
            difference = Difference(i, at, self._margin(prompts[i] + right[:at]))
            assert difference.margin < NEAR_TIE, f"{difference}: {list(answer)[at]} instead of {right[at]}"
            near.append(difference)
        return near

    def _margin(self, tokens):
        import torch
        from transformers import AutoModelForCausalLM

        if self._model is None:
            self._model = AutoModelForCausalLM.from_pretrained(
                self._folder, dtype=torch.float64, attn_implementation="eager"
            )
        with torch.inference_mode():
            best = self._model(torch.tensor([tokens])).logits[0, -1].topk(2).values
        return float(best[0] - best[1])
