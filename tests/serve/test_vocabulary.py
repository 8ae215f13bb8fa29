"""The bytes of tokens: what they are decoded to, wherever they stand."""

import random

import pytest
import tokenizers
from tiny_tokenizer import IM_END, byte_level, ids_of, sentence_piece
from tokenizers import AddedToken, decoders, models

from rtk.errors import ModelError
from rtk.serve.tokenizer import Tokenizer
from rtk.serve.vocabulary import vocabulary

WORDS = ("the", "▁the", "▁", "é", "▁漢字", "\t")


def test_byte_level_tokens_are_the_bytes_that_they_are_written_for():
    tokenizer = byte_level(b"the", b" the", b"\xe6\xbc", b"\xa2\n")
    found = vocabulary(tokenizer, tokenizer.size, {IM_END})
    assert found.ends == {IM_END}
    assert found.tokens[:3] == [b""] * 3
    assert found.tokens[3:259] == [bytes([byte]) for byte in range(256)]
    assert found.tokens[259:] == [b"the", b" the", b"\xe6\xbc", b"\xa2\n"]


def test_pieces_have_spaces_and_bytes_for_what_there_is_no_piece_for():
    tokenizer = sentence_piece(*WORDS)
    found = vocabulary(tokenizer, tokenizer.size, {2})
    assert found.tokens[:3] == [b""] * 3
    assert found.tokens[3:259] == [bytes([byte]) for byte in range(256)]
    assert found.tokens[-6:] == [b"z", b"the", b" the", "é".encode(), " 漢字".encode(), b"\t"]


def test_what_was_added_is_the_text_itself():
    tokenizer = byte_level()
    tokenizer._backend.add_tokens([AddedToken("<a b>"), AddedToken("é\n")])
    found = vocabulary(Tokenizer(tokenizer._backend), tokenizer.size + 2, set())
    assert found.tokens[-2:] == [b"<a b>", "é\n".encode()]
    assert tokenizer.decode([65, tokenizer.size, tokenizer.size + 1]) == ">" + "<a b>é\n"


def test_it_ends_where_the_model_does_and_gaps_have_no_bytes():
    tokenizer = byte_level()
    assert len(vocabulary(tokenizer, 100, set()).tokens) == 100
    assert vocabulary(tokenizer, 300, set()).tokens[259:] == [b""] * 41


@pytest.mark.parametrize("make", [lambda: byte_level(b"the", " é".encode()), lambda: sentence_piece(*WORDS)])
def test_together_they_are_what_is_decoded(make):
    tokenizer, rng = make(), random.Random(5)
    tokens = vocabulary(tokenizer, tokenizer.size, set()).tokens
    texts = 0
    for _ in range(300):
        ids = [rng.randrange(3, tokenizer.size) for _ in range(rng.randint(1, 4))]
        data = b"".join(tokens[token] for token in ids)
        if data.decode(errors="ignore").encode() == data:
            texts += 1
            start = tokenizer.decode(first := [ord("a") + 3])
            assert tokenizer.decode(first + ids) == start + data.decode()
    assert texts > 60


def test_other_decoders_are_refused():
    plain = models.WordLevel({"a": 0}, unk_token="a")
    backend = tokenizers.Tokenizer(plain)
    for decoder, name in ((None, "none"), (decoders.WordPiece(), "WordPiece")):
        if decoder is not None:
            backend.decoder = decoder
        with pytest.raises(ModelError, match=f"its tokenizer's decoder is {name}$"):
            vocabulary(Tokenizer(backend), 1, set())


def test_a_metaspace_is_a_space():
    backend = tokenizers.Tokenizer(models.WordLevel({"▁a▁": 0}, unk_token="▁a▁"))
    backend.decoder = decoders.Metaspace()
    assert vocabulary(Tokenizer(backend), 1, set()).tokens == [b" a "]


def test_names_and_bytes_are_one_to_one():
    tokenizer = byte_level("é漢".encode())
    tokens = vocabulary(tokenizer, tokenizer.size, set()).tokens
    assert [tokens[i] for i in ids_of(tokenizer, "é漢")] == ["é漢".encode()]
    assert len({*tokens[3:259]}) == 256
