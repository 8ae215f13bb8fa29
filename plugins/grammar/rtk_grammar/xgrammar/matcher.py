"""What needs xgrammar: compiles EBNF, and follows it."""

import re
import time

import numpy as np
import xgrammar
from numpy.typing import NDArray

from rtk.plugin.grammar import WORD, Vocabulary
from rtk_grammar.expr import Rules
from rtk_grammar.printed import ebnf
from rtk_grammar.tokens import PerVocabulary, TokenMatcher, again, one_line

PLACE = re.compile(r"\[[\d:]+\] \S+\.cc:\d+: ")
"""What its errors begin with."""
QUICK_S = 0.5
"""Up to so long, it is compiled again rather than sent: written out it may have 50 times what it has in memory."""


def _compiler(vocabulary: Vocabulary) -> tuple[xgrammar.TokenizerInfo, xgrammar.GrammarCompiler]:
    tokens = [b"" if i in vocabulary.ends else token for i, token in enumerate(vocabulary.tokens)]
    info = xgrammar.TokenizerInfo(
        tokens, xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=sorted(vocabulary.ends)
    )
    return info, xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


_compilers = PerVocabulary(_compiler)


def compiled(rules: Rules, vocabulary: Vocabulary) -> "XGrammarMatcher":
    """A matcher at the start. Raises `ValueError`."""
    try:
        return _compiled(ebnf(rules), vocabulary)
    except RuntimeError as error:
        raise ValueError(f"xgrammar cannot compile it: {one_line(PLACE.sub('', str(error)))}") from None


def _compiled(text: str, vocabulary: Vocabulary) -> "XGrammarMatcher":
    compiler = _compilers(vocabulary)[1]
    began = time.thread_time()
    grammar = compiler.compile_grammar(text)  # it lets other threads go on
    quick = time.thread_time() - began <= QUICK_S
    return XGrammarMatcher(grammar, vocabulary, text=text if quick else "")


class XGrammarMatcher(TokenMatcher):
    """Forks share what was compiled. Pickles as the grammar's text where that was compiled quickly."""

    def __init__(
        self,
        grammar: xgrammar.CompiledGrammar,
        vocabulary: Vocabulary,
        matcher: xgrammar.GrammarMatcher | None = None,
        text: str = "",
    ) -> None:
        super().__init__(vocabulary)
        self.size = int(grammar.memory_size_bytes)
        self._grammar = grammar
        self._text = text
        self._tail = (1 << len(vocabulary.tokens) % WORD) - 1
        """The bits of the last word that stand for tokens; none where all do. It sets the others too."""
        self._matcher = xgrammar.GrammarMatcher(grammar) if matcher is None else matcher

    def complete(self) -> bool:
        return bool(self._matcher.is_completed())

    def step(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def back(self, count: int) -> None:
        self._matcher.rollback(count)

    def fork(self) -> "XGrammarMatcher":
        return self.with_past_of(XGrammarMatcher(self._grammar, self.vocabulary, self._matcher.fork(), self._text))

    def forced(self) -> bytes:
        return b"" if self.ended else self._matcher.find_jump_forward_string().encode()

    def fill(self, mask: NDArray[np.int32], row: int) -> None:
        self._matcher.fill_next_token_bitmask(mask, row)
        if self._tail:
            mask[row, -1] &= self._tail

    def __reduce__(self) -> tuple[object, ...]:
        if self._text:
            return _again, (self._text, self.vocabulary, self.past)
        return _sent, (self._grammar.serialize_json(), self.vocabulary, self.past)


def _again(text: str, vocabulary: Vocabulary, past: list[int]) -> XGrammarMatcher:
    return again(_compiled(text, vocabulary), past)


def _sent(grammar: str, vocabulary: Vocabulary, past: list[int]) -> XGrammarMatcher:
    info = _compilers(vocabulary)[0]
    return again(XGrammarMatcher(xgrammar.CompiledGrammar.deserialize_json(grammar, info), vocabulary), past)
