"""The texts of a choice as a trie of bytes, and the tokens that lead on from its nodes."""

from collections import defaultdict
from collections.abc import Iterable

from rtk.plugin import Vocabulary


class Node:
    __slots__ = ("allowed", "children", "whole")

    def __init__(self) -> None:
        self.children: dict[int, Node] = {}
        self.whole = False  # whether a text ends here
        self.allowed: list[int] | None = None  # the tokens that may follow, once somebody has asked


def trie(texts: Iterable[bytes]) -> Node:
    root = Node()
    for text in texts:
        node = root
        for byte in text:
            node = node.children.setdefault(byte, Node())
        node.whole = True
    return root


class Index:
    """A vocabulary by the bytes of its tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._by_bytes: dict[bytes, list[int]] = defaultdict(list)
        for token, data in enumerate(vocabulary.tokens):
            if data and token not in vocabulary.ends:
                self._by_bytes[data].append(token)
        self._longest = max(map(len, self._by_bytes), default=0)

    def allowed(self, node: Node) -> list[int]:
        """O(nodes below, as deep as the longest token); O(1) when asked again."""
        if node.allowed is None:
            tokens = list(self.vocabulary.ends) if node.whole else []
            ahead = [(node, b"")]
            while ahead:
                place, data = ahead.pop()
                tokens += self._by_bytes.get(data, ())
                if len(data) < self._longest:
                    ahead += [(child, data + bytes((byte,))) for byte, child in place.children.items()]
            node.allowed = tokens
        return node.allowed
