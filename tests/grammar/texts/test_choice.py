"""Choices are texts, each there once."""

import json

import pytest

from rtk.errors import RequestError
from rtk.grammar.choice import ChoiceError, normalise


def test_each_once_in_their_order():
    texts = ["yes", "no", 'a "b"\n', "", "yes", "é😀", "\x00", "</s>"]
    assert normalise(texts) == '["yes","no","a \\"b\\"\\n","","é😀","\\u0000","</s>"]'
    assert normalise(tuple(texts)) == normalise(json.loads(normalise(texts)))


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ([], "it is empty; there must be one text at least"),
        ("yes", "it is a text, and must be an array of texts"),
        ({"a": 1}, "it is an object, and must be an array of texts"),
        (None, "it is null, and must be an array of texts"),
        (["a", 1], "item 1 is a number, and must be a text"),
        (["a", "b", True], "item 2 is a boolean, and must be a text"),
        ([["a"]], "item 0 is an array, and must be a text"),
        (["a", "\ud83d"], "item 1 has half of a surrogate pair in it, which no text can have"),
        (["a"] * 10_001, "it has 10001 texts, 10000 are allowed"),
        (["a" * 262_145], "it has 262145 characters, 262144 are allowed"),
    ],
)
def test_refused(texts, problem):
    with pytest.raises(ChoiceError) as refused:
        normalise(texts)
    assert str(refused.value) == f"choice: {problem}"
    assert isinstance(refused.value, RequestError) and refused.value.status == 400
