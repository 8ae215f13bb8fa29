"""What grammars cost those who have one; used by `grammar.py`."""

import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from grammar_specs import REAL, RECORDS

from rtk import Engine
from rtk.config.load import config_from
from rtk.grammar.mask import apply_mask
from rtk.grammar.schema import normalise
from rtk.plugin.grammar import GrammarBackend, Matcher, Spec, Vocabulary
from rtk.serve.runtime import build_grammar_backends
from rtk.serve.tokenizer import Tokenizer
from rtk.serve.vocabulary import vocabulary

STREAMS, PROMPT, PAIRS = 8, 32, 30
FORMS: dict[str, Mapping[str, Any]] = {
    "all texts": {"regex": r"[\s\S]*"},
    "records": {"json_schema": RECORDS},
}
Config = Mapping[str, Any]


def measure(config: Config, rounds: int, new: int) -> dict[str, Any]:
    """Everything, printed."""
    with Engine({**config, "grammar.jump_forward": False}) as engine:
        streams = [stream_ratios(engine, name, rounds, new) for name in FORMS]
        first = first_token(engine, PAIRS)
        tokens = vocabulary_of(engine)
    print(f"\n| {STREAMS} streams, {new} tokens each | free, ms a token | under a form | ratio | range | by CPU time |")
    print("|---|---|---|---|---|---|")
    for row in streams:
        least, most = min(row["ratios"]), max(row["ratios"])
        ms = f"{row['free_ms']:.2f} | {row['form_ms']:.2f}"
        print(f"| {row['form']} | {ms} | {row['ratio']:.3f} | {least:.3f} to {most:.3f} | {row['cpu_ratio']:.3f} |")
    print(f"\nfirst token, 1 stream: {first['free_ms']:.1f} ms free, {first['later_ms']:+.2f} ms under a known form")
    fills = {name: fill(backend, tokens[0], tokens[1]) for name, backend in backends(config).items()}
    print("\n| mask, microseconds a row | first time: median | 90% | again: median | 90% | longest | accept, median |")
    print("|---|---|---|---|---|---|---|")
    for name, row in fills.items():
        print(f"| {name} | " + " | ".join(f"{value:.1f}" for value in row.values()) + " |")
    applied = apply(tokens[1].words)
    print(f"| applied | | | {applied:.1f} | | | |")
    return {"streams": streams, "first_token": first, "fill_us": fills, "apply_us": applied}


# --- streams ----------------------------------------------------------------------------------------------------


def stream_ratios(engine: Engine, name: str, rounds: int, new: int) -> dict[str, Any]:
    """Runs of the streams, free and under a form: milliseconds a token, and the rounds' ratios."""
    rng, form = random.Random(1), FORMS[name]
    walls, cpus = [], []
    for round_ in range(rounds + 1):
        prompts = [[rng.randrange(1000, 40000) for _ in range(PROMPT)] for _ in range(STREAMS)]
        took = {True: np.zeros(2), False: np.zeros(2)}
        for turn, formed in enumerate((False, True, True, False)):
            salt = f"{name} {round_} {turn}"  # nothing is cached for any of them
            took[formed] += run(engine, prompts, new, form if formed else {}, salt)
        if round_:  # the first warms up, and has the grammar compiled
            walls.append([took[False][0], took[True][0]])
            cpus.append([took[False][1], took[True][1]])
    free, formed = np.median(walls, axis=0) * 1000 / (2 * STREAMS * new)
    ratios = [on / off for off, on in walls]
    return {
        "form": name,
        "free_ms": float(free),
        "form_ms": float(formed),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "cpu_ratio": statistics.median(on / off for off, on in cpus),
    }


def run(engine: Engine, prompts: list[list[int]], new: int, form: Mapping[str, Any], salt: str) -> Sequence[float]:
    """Seconds that answers take by the clock, and of CPU time."""
    params = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True, **form}
    wall, cpu = time.perf_counter(), time.process_time()
    answers = engine.generate(prompts, params, cache_salt=salt)
    took = time.perf_counter() - wall, time.process_time() - cpu
    assert all(len(answer.token_ids) == new for answer in answers), "both have as much to do"
    return took


def first_token(engine: Engine, pairs: int) -> dict[str, float]:
    """How long the first token takes, and how much longer under a form that is known: medians."""
    rng, form = random.Random(2), {"json_schema": REAL["invoice"][0]}

    def first(prompt: list[int], params: Mapping[str, Any], salt: str) -> float:
        begin = time.perf_counter()
        stream = engine.stream(prompt, {"temperature": 0, "max_new_tokens": 2, **params}, cache_salt=salt)
        next(stream)
        took = (time.perf_counter() - begin) * 1000
        list(stream)
        return took

    free, later = [], []
    for pair in range(pairs + 1):
        prompt = [rng.randrange(1000, 40000) for _ in range(PROMPT)]
        turns = (False, True) if pair % 2 else (True, False)
        took = {formed: first(prompt, form if formed else {}, f"{pair} {formed}") for formed in turns}
        if pair:  # the first has the grammar compiled
            free.append(took[False])
            later.append(took[True] - took[False])
    return {"free_ms": statistics.median(free), "later_ms": statistics.median(later)}


# --- the parts by themselves ------------------------------------------------------------------------------------


def vocabulary_of(engine: Engine) -> tuple[Tokenizer, Vocabulary]:
    """What an engine's grammars are over, and the tokenizer."""
    tokenizer = engine._runtime.manager.tokenizer
    return tokenizer, vocabulary(tokenizer, tokenizer.size, frozenset({0}))


def backends(config: Config) -> dict[str, GrammarBackend]:
    """Those that are installed."""
    keys = {name: value for name, value in config.items() if not name.startswith("grammar.")}
    return {one.entry.plugin.name: one.backend for one in build_grammar_backends(config_from(keys))}


def fill(backend: GrammarBackend, tokenizer: Tokenizer, words: Vocabulary) -> dict[str, float]:
    """Microseconds to fill a row at each token of documents, when a place is first come to and when it is again."""
    first: list[float] = []
    again: list[float] = []
    accepts: list[float] = []
    for schema, document in REAL.values():
        spec = Spec("json_schema", normalise(json.dumps(schema)).text)
        if backend.judge(spec).verdict == "refused":
            continue
        tokens = tokenizer.encode(json.dumps(document, ensure_ascii=False), add_special_tokens=False)
        start = backend.compile(spec, words)
        for times in (first, again, again):
            fills, taken = walk(backend, start.fork(), tokens, words)
            times += fills
            accepts += taken
    tenth = {name: float(np.percentile(times, 90)) for name, times in (("first", first), ("again", again))}
    return {
        "first": statistics.median(first),
        "first_p90": tenth["first"],
        "again": statistics.median(again),
        "again_p90": tenth["again"],
        "longest": max(first + again),
        "accept": statistics.median(accepts),
    }


def walk(
    backend: GrammarBackend, matcher: Matcher, tokens: list[int], words: Vocabulary
) -> tuple[list[float], list[float]]:
    """Microseconds of each mask on the way along a document, and of each token that is accepted."""
    mask = np.zeros((1, words.words), dtype=np.int32)
    fills, accepts = [], []
    for token in tokens:
        fills.append(timed(lambda: backend.fill_batch([matcher], mask, [0])))
        assert mask[0, token // 32] >> token % 32 & 1, "documents are valid"
        accepts.append(timed(lambda token=token: matcher.accept(token)))
    return fills, accepts


def timed(act: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    act()
    return (time.perf_counter() - begin) * 1e6


def apply(words: int, times: int = 200) -> float:
    """Median microseconds to apply a row of a mask, of 8 at once."""
    rng = np.random.default_rng(1)
    logits = torch.from_numpy(rng.standard_normal((STREAMS, words * 32), dtype=np.float32))
    mask = rng.integers(-(2**31), 2**31, (STREAMS, words), dtype=np.int64).astype(np.int32)
    rows = np.arange(STREAMS, dtype=np.int32)
    return statistics.median(timed(lambda: apply_mask(logits, mask, rows)) for _ in range(times)) / STREAMS
