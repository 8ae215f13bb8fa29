"""Answers with grammars from real executors over a tiny model: masks, and tokens guessed and computed at once."""

import functools

import pytest
from shapes import DIGITS, Constrained, said, shaped, text
from tiny_models import make_runner

from rtk.model.fused import fuse_layers
from rtk.model.inline_executor import InlineExecutor
from rtk.model.thread_executor import ThreadExecutor
from rtk.plugin.grammar import Vocabulary

END = 98
MERGED = [b"ye", b'":', b"true"]
VOCABULARY = Vocabulary([*(bytes([32 + i]) for i in range(95)), *MERGED, b""], frozenset({END}))
WORD = [*text('"'), (b"abcdefghijklmnopqrstuvwxyz", 0, 6), *text('"')]
SHAPES = {
    "keys": [*text('{"yes": '), *WORD, *text(', "value of it": '), *DIGITS, *text(', "true": true}')],
    "words": [*text("["), *WORD, *text(", "), *WORD, *text("]")],
    "fixed": text('{"yes": true, "no": "it is"}'),
}


@pytest.fixture(scope="module")
def executor_of(zoo):
    """An executor over a model of a kind with pages of a size, on request in a thread of its own."""
    closing = []

    @functools.cache
    def make(kind, page, overlap):
        loaded = zoo.load(kind)
        executor = InlineExecutor(make_runner(loaded, slots=256, page_size=page, rows=9, context_length=128), 99)
        fuse_layers(loaded)
        closing.append(ThreadExecutor(executor) if overlap else executor)
        return closing[-1]

    yield make
    for executor in closing:
        executor.close()


def answers(executor, page, overlap, **options):
    h = Constrained(page_size=page, overlap=overlap, end_tokens=frozenset({END}), seed=1, **options)
    h.scheduler._executor = executor
    for i, shape in enumerate(SHAPES.values()):
        constraint = shaped(shape, vocabulary=VOCABULARY)
        h.add(f"{i}", range(20 * i, 20 * i + 9), constraint=constraint, max_new_tokens=60)
        h.add(f"{i} hot", range(20 * i, 20 * i + 9), constraint=constraint, max_new_tokens=60, temperature=2.0, seed=i)
    h.add("free", range(30, 50), max_new_tokens=20, ignore_eos=True)
    h.run()
    assert h.stat("free") + h.stat("evictable") == h.stat("pool")
    assert h.stat("invariant_violations") == h.stat("grammar_faults") == h.stat("sampling_errors") == 0
    return h


@pytest.mark.parametrize(("kind", "page"), [("llama", 1), ("llama", 4), ("gemma2", 4)])
def test_answers_are_the_same_with_and_without_guesses(executor_of, kind, page, loop):
    overlap = loop["overlap"]
    without = answers(executor_of(kind, 1, False), 1, False, jump_forward=False)
    guessing = answers(executor_of(kind, page, overlap), page, overlap)
    pressed = answers(executor_of(kind, page, overlap), page, overlap, pool_tokens=96, conservativeness=0.02)
    assert without.tokens == guessing.tokens == pressed.tokens
    assert guessing.stat("jump_forward_tokens") > 50
    assert guessing.stat("steps") < without.stat("steps")
    assert said(without.tokens["2"], VOCABULARY) == '{"yes": true, "no": "it is"}'
    assert {without.finished[f"{i}"].reason for i in range(3)} == {"stop"}
    assert len({tuple(tokens) for tokens in without.tokens.values()}) > 4
