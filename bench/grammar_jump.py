"""How many steps are saved where a form leaves no choice; used by `grammar.py`."""

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from grammar_specs import REAL

from rtk import Engine

PROMPT = "Answer with a JSON document for the topic {!r} that is valid under this schema:\n{}\n\n"
"""Who asks for a schema shows it: a model that does not know the keys writes them in pieces that nobody guesses."""


def measure(config: Mapping[str, Any], names: Iterable[str] = tuple(REAL), new: int = 300) -> dict[str, Any]:
    """Steps, tokens and seconds of an answer under each schema, printed as a table."""
    figures: dict[bool, dict[str, Any]] = {}
    for jump in (False, True):
        with Engine({**config, "grammar.jump_forward": jump}) as engine:
            figures[jump] = {name: one(engine, name, new) for name in names}
    print("\n| schema | tokens | steps without | with | times fewer | times as fast | the same text |")
    print("|---|---|---|---|---|---|---|")
    out = {}
    for name in names:
        off, on = figures[False][name], figures[True][name]
        fewer, faster, same = off["steps"] / on["steps"], off["seconds"] / on["seconds"], off["ids"] == on["ids"]
        print(
            f"| {name} | {len(off['ids'])} | {off['steps']} | {on['steps']} | {fewer:.2f} | {faster:.2f} | "
            f"{'yes' if same else 'no'} |"
        )
        out[name] = {"off": off, "on": on, "fewer": fewer, "faster": faster, "same": same}
    return out


def one(engine: Engine, name: str, new: int) -> dict[str, Any]:
    """A request's steps; one before has the grammar compiled, and another prompt."""
    schema = REAL[name][0]
    params = {"temperature": 0, "max_new_tokens": new, "json_schema": schema}
    engine.generate("Warm up.", params)
    before, begin = engine.stats()["steps"], time.perf_counter()
    answer = engine.generate(PROMPT.format(name, json.dumps(schema)), params)
    seconds = time.perf_counter() - begin
    return {"steps": engine.stats()["steps"] - before, "seconds": seconds, "ids": answer.token_ids, "text": answer.text}
