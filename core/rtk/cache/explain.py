"""Why a prompt hits as much as it does, and not more. Reads the tree and changes nothing."""

import heapq
import itertools
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rtk.cache.evictions import Evicted, Place
from rtk.cache.key import TOKEN_BYTES, Key, Namespace, common_prefix
from rtk.cache.node import Node, Root
from rtk.cache.tree import PrefixCache

LOOKED_AT = 1000
"""Continuations that are compared to find the most similar one, the latest first."""

SEARCHED = 1000
"""Namespaces that are looked at to find a prompt elsewhere, the latest to come first."""

NAMED = 16
"""Namespaces that are named then, those with most of the prompt first."""

Ends = Literal["prompt", "differs", "stored", "evicted", "new"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What the cache has of a prompt. Lengths and positions are tokens."""

    namespace: Namespace
    prompt_tokens: int
    cached_tokens: int
    """What a request with this prompt would reuse now: whole pages, and at least one token is left to compute."""
    matched_tokens: int
    """How far the prompt agrees with cached content, in whole pages."""
    ends: Ends
    """Why the match ends: nothing but an incomplete page is left of the prompt; the cache goes on with other tokens;
    what follows lies in the tier; what followed was evicted; or nothing was ever cached there, as far as the cache
    remembers."""
    position: int | None = None
    """Where the prompt differs from the most similar cached sequence; set with `differs`."""
    token: int | None = None
    """The prompt's token there."""
    cached_token: int | None = None
    """The cache's token there."""
    evicted: Evicted | None = None
    """Set with `evicted`."""


class Elsewhere(NamedTuple):
    """Another namespace in which more of a prompt is cached."""

    namespace: Namespace
    cached_tokens: int


class Search(NamedTuple):
    """What a look at other namespaces found."""

    found: tuple[Elsewhere, ...]
    """At most `NAMED`."""
    searched: int
    """Namespaces that were looked at, at most `SEARCHED`."""


def explain(cache: PrefixCache, key: Key) -> Explanation:
    """See `Explanation`. O(n + d), O(LOOKED_AT) page comparisons, and a look through the log of evictions."""
    page = cache.page_size * TOKEN_BYTES
    end = len(key.tokens) - len(key.tokens) % page
    root = cache.root(key.namespace)
    node, matched, used = cache.walk(root, key.tokens, end) if root else (None, 0, 0)
    ends: Ends = "prompt"
    evicted: Evicted | None = None
    differs: tuple[int, int, int] | tuple[None, None, None] = (None, None, None)
    if matched < end:
        inside = node is not None and used < node.size
        following = key.tokens[matched : matched + page]
        stored = node is not None and not inside and following in node.children
        evicted = None if stored else cache.log.find(_places(key.namespace, node), key.tokens, matched, page)
        rest = _most_similar(node, used * TOKEN_BYTES, key.tokens, matched, page) if node is not None else b""
        if stored:
            ends = "stored"
        elif evicted is not None:
            ends = "evicted"
        elif rest:
            ends, differs = "differs", _difference(key.tokens, matched, rest)
        else:
            ends = "new"
    position, token, cached_token = differs
    return Explanation(
        namespace=key.namespace,
        prompt_tokens=key.length,
        cached_tokens=cache.peek(key, limit=key.length - 1).length,
        matched_tokens=matched // TOKEN_BYTES,
        ends=ends,
        position=position,
        token=token,
        cached_token=cached_token,
        evicted=evicted,
    )


def search(cache: PrefixCache, key: Key) -> Search:
    """Where more of a prompt is cached than in its own namespace. O(SEARCHED * (n + d)); O(SEARCHED) where it is not.

    n is the length of what is cached of it, d the number of nodes that hold that.
    """
    limit = key.length - 1
    own = cache.peek(key, limit).length
    others = (namespace for namespace in cache.latest_namespaces() if namespace != key.namespace)
    looked_at = list(itertools.islice(others, SEARCHED))
    lengths = (Elsewhere(each, cache.peek(key._replace(namespace=each), limit).length) for each in looked_at)
    more = [each for each in lengths if each.cached_tokens > own]
    return Search(tuple(heapq.nlargest(NAMED, more, key=lambda each: each.cached_tokens)), len(looked_at))


def _places(namespace: Namespace, node: Node | None) -> dict[Place, int]:
    """A node and all above it, with where they end, in bytes. O(d)."""
    places: dict[Place, int] = {namespace: 0}
    while node is not None and not isinstance(node, Root):
        places[node.id] = (node.start + node.size) * TOKEN_BYTES
        node = node.parent
    return places


def _most_similar(node: Node, used: int, tokens: bytes, at: int, page: int) -> bytes:
    """Of what the cache has after the match, the page that agrees longest with the prompt; empty if there is none."""
    if used < len(node.tokens):
        return node.tokens[used : used + page]
    pages = itertools.islice(reversed(node.children), LOOKED_AT)
    return max(pages, key=lambda other: common_prefix(tokens, at, other, 0, page), default=b"")


def _difference(tokens: bytes, at: int, other: bytes) -> tuple[int, int, int]:
    """(position, the prompt's token, the cache's token) of the first difference between two pages that differ."""
    same = common_prefix(tokens, at, other, 0, len(other))
    theirs = other[same : same + TOKEN_BYTES]
    mine = tokens[at + same : at + same + TOKEN_BYTES]
    return (at + same) // TOKEN_BYTES, int.from_bytes(mine, "little"), int.from_bytes(theirs, "little")
