"""The filter of keys that are there already, against a look at the whole text for every token."""

import json
import random
import re

import pytest

from rtk.grammar.unique_keys import KeyIndex, UniqueKeys
from rtk.plugin.grammar import Vocabulary

PARTS = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\Z|\\\Z)|[{}\[\],:]|[^"{}\[\],:]+', re.DOTALL)


def twice(text):
    """Whether an object of a text, which may end anywhere, has a key twice; None where a key is no JSON."""
    open_, key = [], False
    for part in PARTS.findall(text):
        if part[:1] == b'"':
            if len(part) > 1 and re.fullmatch(rb'"(?:[^"\\]|\\.)*"', part, re.DOTALL):
                if key and open_:
                    try:
                        name = json.loads(part)
                    except ValueError:
                        return None
                    if name in open_[-1]:
                        return True
                    open_[-1].add(name)
                key = False
        elif part in (b"{", b"["):
            open_.append(set() if part == b"{" else None)
            key = part == b"{"
        elif part in (b"}", b"]"):
            if open_:
                open_.pop()
            key = False
        elif part == b",":
            key = bool(open_) and open_[-1] is not None
        elif part == b":":
            key = False
    return False


def vocabulary(*tokens):
    return Vocabulary(tuple(token.encode() if isinstance(token, str) else token for token in tokens), frozenset())


def follow(index, text):
    """Fed a text, in tokens as they come."""
    keys = UniqueKeys(index)
    while text:
        token, data = max(
            ((i, data) for i, data in enumerate(index.tokens) if data and text.startswith(data)),
            key=lambda it: len(it[1]),
        )
        keys.advance(token)
        text = text[len(data) :]
    return keys


SINGLE = [bytes((byte,)) for byte in range(256)]
SAID = vocabulary(
    *SINGLE, b"", 'a"', 'b"', 'ab"', '"a"', '"b"', '"a":', '{"a"', '{"a":1,"a"', '{"a":1,"b"', ',"a"', ', "b":',
    '},"a":', '],"a"', '","', '":"', '":1,"a"', '","a"', '","b":2', '"}', '\\u0061"', '\\"', '"\\u0061"', "\\u00",
    '61"', '\\ud83d', '\\ude00"', '😀"', "\\", 'n"', '"":', '":{"a":1,"b"', '":{"a":1},"a"', 'é"', b'\xa9"',
    b"\xc3", '"}}', ',"c":[{"a"', "\\ud83d\\ude00\"",
)  # fmt: skip
INDEX = KeyIndex(SAID)
TEXTS = (
    '{"a":1,"b":{"a":2,"ab":[{"a":3},{"a":"b\\"","b":4}]},"ab":5,',
    '{"a":1,"',
    '{"\\u0061b":1,"a\\',
    '{"😀":1,"\\ud83d\\ude00x":2,"\\ud83d',
    '{"😀":1,"é":2,"\\n":3,"n":"","":4,"\\u00',
    '[{"a":1},{"b":2,"a":[',
    '{"a": {"b": {"b" : 1} , "a" : "x","',
    '["a","',
    '{"a":"","b":"a","\\\\":0,"\\ud83d":1,"',
)


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_refused_is_what_would_be_there_twice(text):
    data = text.encode()
    assert twice(data) is False
    for cut in range(len(data) + 1):
        keys = follow(INDEX, data[:cut])
        expected = {token: twice(data[:cut] + token_data) for token, token_data in enumerate(SAID.tokens)}
        forbidden = set(keys.forbidden().tolist())
        assert forbidden <= {token for token, is_twice in expected.items() if is_twice is not False}
        assert forbidden >= {token for token, is_twice in expected.items() if is_twice}


def forbidden(text, *tokens):
    keys = follow(KeyIndex(vocabulary(*SINGLE, *tokens)), text.encode())
    return [keys._index.tokens[token].decode() for token in keys.forbidden()]


def test_what_is_forbidden_by_name():
    outside = ('"a"', '"b"', '"ab":', ' "\\u0061" :', '{"a":1,"a"', '{"a":1,"b"', '"a', '","')
    assert set(forbidden('{"a":1,"ab":2,', *outside)) == {'"a"', '"ab":', ' "\\u0061" :', '{"a":1,"a"'}
    assert set(forbidden('{"a":1,"ab":2', ',"a"', ',"b"', ', "ab":', "],", '},"a"')) == {',"a"', ', "ab":'}
    inside = ('b"', 'b":', "b", 'x"', '\\u0062"', '":1,"ab"', '":{"c":1,"c"', '":{"a":1},"b"', '":{"ab":1}')
    assert set(forbidden('{"ab":1,"a', *inside)) == {'b"', 'b":', '\\u0062"', '":1,"ab"', '":{"c":1,"c"'}
    assert set(forbidden('{"a":1,"ab":2,"a', '"', 'b"', '"}')) == {'"', 'b"', '"}'}
    assert set(forbidden('{"a":["', '","', '"],"a"', '"],"b"', '","a":')) == {'"],"a"'}
    assert set(forbidden('[{"a":1},{"b":', '1},{"b"', '1,"b"', '1,"a"')) == {'1,"b"'}


def test_tokens_are_taken_back_and_forks_go_their_own_way():
    rng = random.Random(7)
    for text in TEXTS:
        keys, past = UniqueKeys(INDEX), []
        for byte in text.encode():
            past.append(keys.forbidden().tolist())
            fork = keys.fork()
            for token in rng.sample(range(len(SAID.tokens)), 3):
                fork.advance(token)
            keys.advance(byte)
            if rng.random() < 0.3:
                fork.rollback(3)
                assert fork.forbidden().tolist() == past[-1]
        count = rng.randint(1, len(past))
        keys.rollback(count)
        assert keys.forbidden().tolist() == past[-count]
        keys.rollback(len(past) - count)
        with pytest.raises(AssertionError, match="1 of 0 tokens"):
            keys.rollback(1)


def test_random_texts_and_vocabularies():
    rng = random.Random(11)
    names = ["a", "b", "ab", "", "é", "😀", '"', "\\", "a b"]

    def value(depth):
        kind = rng.random()
        if depth and kind < 0.5:
            parts = [
                f"{json.dumps(name, ensure_ascii=rng.random() < 0.5)}:{value(depth - 1)}"
                for name in rng.choices(names, k=3)
            ]
            return "{" + ", "[: rng.randint(1, 2)].join(parts) + "}"
        if depth and kind < 0.7:
            return "[" + ",".join(value(depth - 1) for _ in range(2)) + "]"
        return json.dumps(rng.choice([1, "a", True, *names]), ensure_ascii=rng.random() < 0.5)

    for _ in range(3):
        texts = [value(3).encode() for _ in range(4)]
        starts = [(text, rng.randrange(len(text))) for text in texts for _ in range(12)]
        single = sorted({bytes((byte,)) for text in texts for byte in text})
        some = vocabulary(*single, *(text[i : i + rng.randint(2, 14)] for text, i in starts))
        index = KeyIndex(some)
        for text in texts:
            keys, said = UniqueKeys(index), b""
            while len(said) < len(text):
                expected = {token: twice(said + data) for token, data in enumerate(some.tokens)}
                forbidden = set(keys.forbidden().tolist())
                assert {token for token, bad in expected.items() if bad} <= forbidden
                assert forbidden <= {token for token, bad in expected.items() if bad is not False}
                fits = [token for token, data in enumerate(some.tokens) if text[len(said) :].startswith(data)]
                token = rng.choice(fits)
                if token in forbidden:
                    break
                keys.advance(token)
                said += some.tokens[token]
