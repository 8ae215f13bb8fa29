"""What the libraries make of a text of ours, byte by byte: their vocabulary is the 256 bytes and an end."""

from functools import cache

import llguidance
import outlines_core
import xgrammar

from rtk.plugin import Options, Spec, Vocabulary
from rtk_grammar.llguidance.backend import LLGuidance

END = 256
TOKENS = [bytes([i]) for i in range(256)] + [b""]


@cache
def _xgrammar():
    info = xgrammar.TokenizerInfo(TOKENS, vocab_size=len(TOKENS), stop_token_ids=[END])
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


class _Tokenizer:
    eos_token_id = END
    bos_token_id = None
    tokens = TOKENS
    special_token_ids = (END,)

    def __call__(self, text):
        return list(text.encode() if isinstance(text, str) else text)


@cache
def _llguidance():
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Tokenizer()))


@cache
def _outlines():
    return outlines_core.Vocabulary(END, {bytes([i]): [i] for i in range(256)})


def _with_xgrammar(compiled):
    def accepts(text):
        matcher = xgrammar.GrammarMatcher(compiled)
        return all(matcher.accept_token(token) for token in (*text.encode(), END))

    return accepts


def _with_llguidance(grammar):
    problem = llguidance.LLMatcher.validate_grammar(grammar, _llguidance())
    assert not problem, problem
    matcher = llguidance.LLMatcher(_llguidance(), grammar, log_level=0)

    def accepts(text):
        tokens = [*text.encode(), END]
        return matcher.validate_tokens(tokens) == len(tokens)

    return accepts


def _with_outlines(pattern):
    # Anchored and never empty: its matches are the first ones, not the longest, and an empty one has no first state.
    index = outlines_core.Index(f"!(?:{pattern})$", _outlines())

    def accepts(text):
        guide = outlines_core.Guide(index)
        for token in ("!" + text).encode():
            if token not in guide.get_tokens():
                return False
            guide.advance(token, return_tokens=False)
        return END in guide.get_tokens()

    return accepts


def regex_readers(pattern):
    """Whether each library, by name, lets a text be an answer that the pattern matches."""
    return {
        "xgrammar": _with_xgrammar(_xgrammar().compile_regex(pattern)),
        "llguidance": _with_llguidance(llguidance.LLMatcher.grammar_from_regex(pattern)),
        "outlines_core": _with_outlines(pattern),
    }


def ebnf_readers(grammar):
    """The same for a grammar; llguidance gets it from its plugin, because it reads another language."""
    matcher = LLGuidance(Options()).compile(Spec("ebnf", grammar), Vocabulary(TOKENS, frozenset({END})))

    def accepts(text):
        fork = matcher.fork()
        return all(map(fork.accept, (*text.encode(), END)))

    return {"xgrammar": _with_xgrammar(_xgrammar().compile_grammar(grammar)), "llguidance": accepts}
