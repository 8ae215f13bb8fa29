"""Why a prompt hits the prefix cache as much as it does, for people: tokens with their text, and one sentence."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from rtk.cache.explain import Elsewhere, Ends, Explanation
from rtk.cache.key import Namespace
from rtk.schedule.messages import Explained


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token and what a person reads for it."""

    token: int
    text: str

    def __str__(self) -> str:
        return f"{self.token} ({self.text!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where a prompt leaves the most similar of what is cached."""

    position: int
    """Of the token, from 0."""
    prompt: TokenText
    cached: TokenText


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """The eviction that took what followed on a match."""

    tokens: int
    seconds_ago: float
    tick: int
    """The cache's logical time: one tick for each request that it serves, one for each time that one grows it."""
    policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheExplanation:
    """What the prefix cache has of a prompt. Lengths are tokens."""

    namespace: Namespace
    prompt_tokens: int
    cached_tokens: int
    """What a request with this prompt would reuse now: whole pages, and at least one token is left to compute."""
    matched_tokens: int
    """How far the prompt agrees with what is cached, in whole pages."""
    ends: Ends
    """Why the match ends: with the prompt, at other tokens, in a slower tier, where something was evicted, or where
    nothing ever was."""
    differs: Difference | None
    """Set where it ends with `differs`."""
    evicted: Eviction | None
    """Set where it ends with `evicted`."""
    elsewhere: tuple[Elsewhere, ...]
    """Other namespaces that more of the prompt is cached in, most of it first, where that was asked for."""
    searched: int
    """How many other namespaces were looked at for this."""
    reason: str
    """One sentence."""


def explanation(answer: Explained, text_of: Callable[[int], str]) -> CacheExplanation:
    """The scheduler's answer, with the text of tokens."""
    found = answer.explanation
    differs = _difference(found, text_of)
    evicted = _eviction(answer)
    return CacheExplanation(
        namespace=found.namespace,
        prompt_tokens=found.prompt_tokens,
        cached_tokens=found.cached_tokens,
        matched_tokens=found.matched_tokens,
        ends=found.ends,
        differs=differs,
        evicted=evicted,
        elsewhere=answer.elsewhere.found if answer.elsewhere else (),
        searched=answer.elsewhere.searched if answer.elsewhere else 0,
        reason=_reason(found, differs, evicted),
    )


def _difference(found: Explanation, text_of: Callable[[int], str]) -> Difference | None:
    if found.position is None or found.token is None or found.cached_token is None:
        return None
    mine, theirs = (TokenText(token, text_of(token)) for token in (found.token, found.cached_token))
    return Difference(position=found.position, prompt=mine, cached=theirs)


def _eviction(answer: Explained) -> Eviction | None:
    evicted, ago = answer.explanation.evicted, answer.evicted_ago_s
    if evicted is None or ago is None:
        return None
    return Eviction(tokens=evicted.tokens, seconds_ago=ago, tick=evicted.tick, policy=evicted.policy)


def _reason(found: Explanation, differs: Difference | None, evicted: Eviction | None) -> str:
    return f"{found.cached_tokens} of {found.prompt_tokens} tokens would be reused: {_why(found, differs, evicted)}."


def _why(found: Explanation, differs: Difference | None, evicted: Eviction | None) -> str:
    matched = found.matched_tokens
    match found.ends:
        case "prompt" if not matched:
            return "the prompt does not fill a page, and whole pages are cached"
        case "prompt":
            rest = "what does not fill a page, and at least the last token, is always computed"
            return f"the cache has the first {matched}; {rest}"
        case "differs":
            assert differs is not None, "what differs is known"
            at = f"at position {differs.position} the prompt has token {differs.prompt}"
            return f"{at}, and the most similar of what is cached has {differs.cached}"
        case "stored":
            return f"what follows the first {matched} is not on the device, but in a slower tier"
        case "evicted":
            assert evicted is not None, "what was evicted is known"
            size, ago = f"{evicted.tokens} tokens", f"{evicted.seconds_ago:.1f} s ago"
            return f"what followed the first {matched} was evicted {ago} ({size}, by {evicted.policy})"
        case "new":
            after = f"follows on the first {matched}" if matched else "begins like this"
            return f"nothing that {after} was cached, as far as the cache remembers"
        case _:
            assert_never(found.ends)
