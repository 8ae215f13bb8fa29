"""What needs xgrammar: compiles EBNF, and follows it."""

import re

import numpy as np
import xgrammar
from numpy.typing import NDArray

from rtk.plugin.grammar import WORD, Vocabulary
from rtk_grammar.expr import Rules
from rtk_grammar.printed import ebnf
from rtk_grammar.tokens import PerVocabulary, TokenMatcher, again, one_line

PLACE = re.compile(r"\[[\d:]+\] \S+\.cc:\d+: ")
"""What its errors begin with."""


def _compiler(vocabulary: Vocabulary) -> xgrammar.GrammarCompiler:
    tokens = [b"" if i in vocabulary.ends else token for i, token in enumerate(vocabulary.tokens)]
    info = xgrammar.TokenizerInfo(
        tokens, xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=sorted(vocabulary.ends)
    )
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


_compilers = PerVocabulary(_compiler)


def compiled(rules: Rules, vocabulary: Vocabulary) -> "XGrammarMatcher":
    """A matcher at the start. Raises `ValueError`."""
    return _started(ebnf(rules), vocabulary)


def _started(text: str, vocabulary: Vocabulary) -> "XGrammarMatcher":
    try:
        grammar = _compilers(vocabulary).compile_grammar(text)
    except RuntimeError as error:
        raise ValueError(f"xgrammar cannot compile it: {one_line(PLACE.sub('', str(error)))}") from None
    return XGrammarMatcher(text, vocabulary, xgrammar.GrammarMatcher(grammar), int(grammar.memory_size_bytes))


class XGrammarMatcher(TokenMatcher):
    """Forks share what was compiled.

    Pickles as the text of the grammar. What was compiled has up to some 20 MB as JSON: to write and read that can take
    three times as long as to compile it again, which blocks no other thread.
    """

    def __init__(self, text: str, vocabulary: Vocabulary, matcher: xgrammar.GrammarMatcher, size: int) -> None:
        super().__init__(vocabulary)
        self.size = size
        self._text = text
        self._matcher = matcher
        self._tail = (1 << len(vocabulary.tokens) % WORD) - 1
        """The bits of the last word that stand for tokens; none where all do. It sets the others too."""

    def complete(self) -> bool:
        return bool(self._matcher.is_completed())

    def step(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def back(self, count: int) -> None:
        self._matcher.rollback(count)

    def fork(self) -> "XGrammarMatcher":
        return self.with_past_of(XGrammarMatcher(self._text, self.vocabulary, self._matcher.fork(), self.size))

    def forced(self) -> bytes:
        return b"" if self.ended else self._matcher.find_jump_forward_string().encode()

    def fill(self, mask: NDArray[np.int32], row: int) -> None:
        self._matcher.fill_next_token_bitmask(mask, row)
        if self._tail:
            mask[row, -1] &= self._tail

    def __reduce__(self) -> tuple[object, ...]:
        return _sent, (self._text, self.vocabulary, self.past)


def _sent(text: str, vocabulary: Vocabulary, past: list[int]) -> XGrammarMatcher:
    return again(_started(text, vocabulary), past)
