"""Choices: the texts of which an answer is one."""

import json

from rtk.errors import RequestError

MAX_TEXTS = 10_000
MAX_CHARACTERS = 262_144
"""Of all texts together."""


class ChoiceError(RequestError):
    """A list of texts that is malformed, or too large."""

    def __init__(self, problem: str):
        super().__init__(f"choice: {problem}", code="invalid_grammar")


def normalise(texts: object) -> str:
    """A JSON array of the texts, each there once, in their order. Raises `ChoiceError`."""
    if not isinstance(texts, list | tuple):
        raise ChoiceError(f"it is {_kind(texts)}, and must be an array of texts")
    if not texts:
        raise ChoiceError("it is empty; there must be one text at least")
    if len(texts) > MAX_TEXTS:
        raise ChoiceError(f"it has {len(texts)} texts, {MAX_TEXTS} are allowed")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ChoiceError(f"item {i} is {_kind(text)}, and must be a text")
        if not writable(text):
            raise ChoiceError(f"item {i} has half of a surrogate pair in it, which no text can have")
    count = sum(map(len, texts))
    if count > MAX_CHARACTERS:
        raise ChoiceError(f"it has {count} characters, {MAX_CHARACTERS} are allowed")
    return json.dumps(list(dict.fromkeys(texts)), ensure_ascii=False, separators=(",", ":"))


def writable(text: str) -> bool:
    """Whether there are bytes for it: no half of a surrogate pair stands alone."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: object) -> str:
    """What JSON calls a value."""
    if value is None:
        return "null"
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a text", dict: "an object"}
    return kinds.get(type(value), "an array")
