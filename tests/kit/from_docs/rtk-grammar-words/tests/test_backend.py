import numpy as np
import pytest
from rtk.plugin import Spec, Vocabulary
from rtk.plugin.grammar import read_row

from rtk_grammar_words import BackendOptions
from rtk_grammar_words.backend import Words

TOKENS = [b"", b"y", b"es", b"yes", b"no", b"n", b"yes"]
END = 0


def allowed(text: str, *tokens: int) -> list[int]:
    vocabulary = Vocabulary(TOKENS, frozenset({END}))
    backend = Words(BackendOptions())
    matcher = backend.compile(Spec("choice", text), vocabulary)
    assert all(matcher.accept(token) for token in tokens)
    mask = np.full((1, vocabulary.words), -1, dtype=np.int32)
    backend.fill_batch([matcher], mask, [0])
    return sorted(read_row(mask[0]))


def test_every_way_to_cut_a_text_is_allowed():
    assert allowed('["yes", "no"]') == [1, 3, 4, 5, 6]
    assert allowed('["yes", "no"]', 1) == [2]
    assert allowed('["y", "yes"]', 1) == [END, 2]
    assert allowed('["y", "yes"]', 6) == [END]
    assert allowed('["", "no"]') == [END, 4, 5]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('"yes"', "not a JSON array"),
        ("[]", "of one at least"),
        ('["a", 1]', "of texts"),
        ('["a", "b", "\\u0061"]', "choice 'a' is there more than once"),
        (r'["\ud800"]', "surrogate"),
        ('["12345678", "9"]', "9 bytes together, of 8 at most"),
    ],
)
def test_what_is_no_choice_is_refused_with_the_reason(text, reason):
    judgement = Words(BackendOptions(max_bytes=8)).judge(Spec("choice", text))
    assert judgement.verdict == "refused"
    assert reason in judgement.reasons[0].problem


def test_forced_bytes_stop_where_answers_part_or_end():
    def forced(text: str) -> bytes:
        return Words(BackendOptions()).compile(Spec("choice", text), Vocabulary(TOKENS, frozenset({END}))).forced()

    assert forced('["yes"]') == forced('["yes", "yesterday"]') == b"yes"
    assert forced('["yes", "no"]') == b""
