"""Writes docs/models.md from the models that the tests try: tests/model/architectures.py and known_configs.py."""

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "model"))

from architectures import REFUSED, SERVED
from known_configs import KNOWN

PAGE = Path(__file__).with_name("models.md")
TEXT = """\
# Models

Written by `make docs` from what the tests try. Model definitions come from transformers, and no list decides what is
served: a model is refused by its config.json, or when it is loaded and runs for a few tokens
([why](decisions/0003-the-probe-decides-what-can-be-served.md)), and the message names the reason. So a model type
that is not on this page may be served all the same.

## Tried

A tiny model of each, with random weights, gives what `generate` of transformers gives: the same greedy tokens, and
logits that differ by less than 1e-4 of their norm, in float32 on the torch backend, with prompts in pieces, steps that
mix prompts and answers, and a prefix that another request computed. Windows are shorter than the prompts. Real weights
were run of the demo model only.

{served}

Layers that share the K/V of another one (gemma3n, gemma4) keep a copy of their own.

## Longest sequence

It is `max_position_embeddings` of config.json, or less by `model.context_length`. With rope of type `longrope` it is
`original_max_position_embeddings` (Phi-3 mini 128k: 4,096 tokens), and the start says so: past that length transformers
turns all of a batch by other frequencies, the shorter ones too, so that answers would depend on who else is served.

## Refused

{refused}

## Well-known models

What rtk says to their config.json; the weights were not read.

{known}
"""


def page() -> str:
    asked, refused = defaultdict(list), defaultdict(list)
    for name, case in SERVED.items():
        asked[", ".join(f"`{feature}`" for feature in case.asks.split()) or "nothing more"].append(_kind(name))
    for name, refusal in REFUSED.items():
        refused[_cut(refusal.reason)].append(_kind(name))
    return TEXT.format(
        served=_table(
            ("asks of attention", "model types"), ((asks, "; ".join(kinds)) for asks, kinds in asked.items())
        ),
        refused=_table(("reason", "model types"), ((reason, "; ".join(kinds)) for reason, kinds in refused.items())),
        known=_table(("model", "model type", "served"), map(_known, KNOWN)),
    )


def _table(head: tuple[str, ...], rows: Iterable[Iterable[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _kind(name: str) -> str:
    kind, comma, special = name.partition(",")
    return f"`{kind}`{comma}{special}"


def _cut(reason: str) -> str:
    return reason.rstrip("; ,:")


def _known(name: str) -> tuple[str, str, str]:
    config, taken = KNOWN[name]
    return name, f"`{config['model_type']}`", f"{taken:,} tokens" if isinstance(taken, int) else f"no: {_cut(taken)}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
