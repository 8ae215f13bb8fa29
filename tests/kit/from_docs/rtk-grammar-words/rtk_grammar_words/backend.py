"""One of a few texts: a matcher is a path through the trie of their bytes, with one node for each token."""

import json
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rtk.plugin import GrammarBackend, Judgement, Matcher, Spec, Vocabulary
from rtk.plugin.grammar import write_row

from . import BackendOptions
from .trie import Index, Node, trie

OVER = Node()  # behind an end: nothing follows


class Words(GrammarBackend):
    spec_kinds = frozenset({"choice"})

    def __init__(self, options: BackendOptions) -> None:
        self._max_bytes = options.max_bytes
        self._index: Index | None = None  # of the vocabulary that was seen last

    def judge(self, spec: Spec) -> Judgement:
        try:
            texts = json.loads(spec.text)
        except (ValueError, RecursionError):
            return Judgement.refused("the choices are not valid JSON")
        if not (isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)):
            return Judgement.refused("the choices are not a JSON array of texts, of one at least")
        reasons = [f"choice {text!r} is there more than once" for text, count in Counter(texts).items() if count > 1]
        try:
            size = sum(len(text.encode()) for text in texts)
        except UnicodeEncodeError:
            return Judgement.refused(*reasons, "a choice has half of a surrogate pair, which no answer can have")
        if size > self._max_bytes:
            reasons.append(f"the choices have {size} bytes together, of {self._max_bytes} at most")
        return Judgement.refused(*reasons) if reasons else Judgement.exact()

    def compile(self, spec: Spec, vocabulary: Vocabulary) -> "OneOf":
        texts = [text.encode() for text in json.loads(spec.text)]
        index = self._index
        if index is None or index.vocabulary is not vocabulary:
            index = self._index = Index(vocabulary)
        return OneOf([trie(texts)], index, max(map(len, texts)) + 1)

    def fill_batch(self, matchers: Sequence[Matcher], mask: NDArray[np.int32], rows: Sequence[int]) -> None:
        for matcher, row in zip(matchers, rows, strict=True):
            assert isinstance(matcher, OneOf)
            write_row(mask[row], matcher.allowed())


class OneOf(Matcher):
    def __init__(self, path: list[Node], index: Index, most_tokens: int) -> None:
        self._path, self._index = path, index
        self.max_rollback = most_tokens  # a byte each at least, and the end: all of an answer can be taken back

    def allowed(self) -> list[int]:
        return self._index.allowed(self._path[-1])

    def accept(self, token: int) -> bool:
        after = self._after(token)
        if after is not None:
            self._path.append(after)
        return after is not None

    def _after(self, token: int) -> Node | None:
        vocabulary, node = self._index.vocabulary, self._path[-1]
        if token in vocabulary.ends:
            return OVER if node.whole else None
        data = vocabulary.tokens[token]
        place = node if data else None
        for byte in data:
            place = place.children.get(byte) if place else None
        return place

    def rollback(self, count: int) -> None:
        del self._path[len(self._path) - count :]

    def fork(self) -> "OneOf":
        return OneOf(list(self._path), self._index, self.max_rollback)

    def forced(self) -> bytes:
        node, data = self._path[-1], bytearray()
        while len(node.children) == 1 and not node.whole:
            ((byte, node),) = node.children.items()
            data.append(byte)
        return bytes(data)
