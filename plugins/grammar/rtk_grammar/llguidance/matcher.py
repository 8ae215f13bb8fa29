"""What needs llguidance: parses by Lark text, and says what may come next."""

from collections.abc import Sequence
from typing import cast

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from rtk.plugin.grammar import Vocabulary
from rtk_grammar.expr import Rules, flat, has_tokens, token
from rtk_grammar.printed import lark
from rtk_grammar.tokens import PerVocabulary, TokenMatcher, again, one_line

MOST_PARTS = 20_000
"""Of an EBNF that is taken as one regular expression."""


LIMITS = LLParserLimits()
"""Of one grammar, and of one step; those that it comes with."""


ALL_TOKENS = '%llguidance {"no_forcing": true}\n'
"""Where bytes are forced, it would allow no other token than a tokenizer would write them with."""


class _Tokens:
    """What `LLTokenizer` wants to know of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, vocabulary: Vocabulary):
        self.tokens = [b"" if i in vocabulary.ends else token for i, token in enumerate(vocabulary.tokens)]
        self.eos_token_id = min(vocabulary.ends)

    def __call__(self, text: str | bytes) -> list[int]:
        """Asked about how a text is cut into tokens, for hints that nobody reads here."""
        return []


def _tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    return LLTokenizer(
        cast(TokenizerWrapper, _Tokens(vocabulary)), n_vocab=len(vocabulary.tokens), eos_token=sorted(vocabulary.ends)
    )


_tokenizers = PerVocabulary(_tokenizer)


def compiled(rules: Rules, vocabulary: Vocabulary) -> "LLGuidanceMatcher":
    """A matcher at the start. Raises `ValueError`."""
    if not any(map(has_tokens, rules.values())) and (whole := flat(rules, MOST_PARTS)) is not None:
        rules = {"root": token(whole)}
    return _parsing(lark(rules), vocabulary)


def _parsing(grammar: str, vocabulary: Vocabulary) -> "LLGuidanceMatcher":
    matcher = LLMatcher(
        _tokenizers(vocabulary), LLMatcher.grammar_from_lark(ALL_TOKENS + grammar), log_level=0, limits=LIMITS
    )
    if matcher.is_error():
        raise ValueError(f"llguidance cannot compile it: {one_line(matcher.get_error())}")
    return LLGuidanceMatcher(grammar, vocabulary, matcher)


class LLGuidanceMatcher(TokenMatcher):
    """Pickles as the grammar's text: parsing it again takes less than what was computed would."""

    def __init__(self, grammar: str, vocabulary: Vocabulary, matcher: LLMatcher) -> None:
        super().__init__(vocabulary)
        self._grammar = grammar
        self._matcher = matcher

    def complete(self) -> bool:
        return bool(self._matcher.is_accepting())

    def step(self, token: int) -> bool:
        return bool(self._matcher.try_consume_tokens([token]))

    def back(self, count: int) -> None:
        self._matcher.rollback(count)

    def fork(self) -> "LLGuidanceMatcher":
        return self.with_past_of(LLGuidanceMatcher(self._grammar, self.vocabulary, self._matcher.deep_copy()))

    def forced(self) -> bytes:
        return b"" if self.ended else bytes(self._matcher.compute_ff_bytes())

    def fill(self, mask: NDArray[np.int32], row: int) -> None:
        self._matcher.unsafe_compute_mask_ptr(mask[row].ctypes.data, mask.shape[1] * mask.itemsize)

    def __reduce__(self) -> tuple[object, ...]:
        return _sent, (self._grammar, self.vocabulary, self.past)


def _sent(grammar: str, vocabulary: Vocabulary, past: list[int]) -> LLGuidanceMatcher:
    return again(_parsing(grammar, vocabulary), past)
