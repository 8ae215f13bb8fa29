"""What a request costs and whether it can ever fit. Amounts are slots, in whole pages."""

from dataclasses import dataclass

from rtk.errors import RequestError

CLIP_NEW_TOKENS = 4096
"""Charges and reserves count at most this much of what a request may still generate: much is no refusal by itself."""

_CONTEXT = "the context length of this server (in tokens)"


def ceil_page(tokens: int, page_size: int) -> int:
    """`tokens`, rounded up to whole pages."""
    return -(-tokens // page_size) * page_size


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes that every request is measured against. Tokens, unless named otherwise."""

    context_length: int
    pool_tokens: int
    page_size: int
    max_running: int
    max_prefill_tokens: int
    """Uncached prompt tokens that one step may compute; a first request may exceed it where prompts are not cut."""
    chunk_tokens: int | None = None
    """Prompt tokens that one step computes where prompts are cut, at least a page; None: prompts are not cut."""
    mixed_tokens: int | None = None
    """The same beside requests that decode, while no more wait; None: as many as in other steps."""
    align_tokens: int = 1
    """Prompts are cut at multiples of this and of the page size."""


def charge(uncached: int, new_tokens: int, page_size: int) -> int:
    """What a request with so many tokens to compute and then to generate is charged."""
    return ceil_page(uncached, page_size) + min(max(new_tokens, 0), CLIP_NEW_TOKENS) + page_size


def resolve_max_new_tokens(prompt_len: int, asked: int | None, limits: Limits, pinned: int = 0) -> int:
    """How many tokens the request may generate: what it asked for, or as many as context and pool allow.

    `pinned` tokens of the pool are out of its reach. Raises `RequestError`, with the numbers, for a request that could
    never run to its end.
    """
    context, pool, page = limits.context_length, limits.pool_tokens - pinned, limits.page_size
    reach = f"the pool of {limits.pool_tokens}" + (f", of which {pinned} are pinned" if pinned else "")
    check_prompt_length(prompt_len, context)
    if asked is not None and prompt_len + asked > context:
        raise RequestError(
            f"prompt ({prompt_len}) + max_new_tokens ({asked}) = {prompt_len + asked} exceeds {context}, {_CONTEXT}; "
            "shorten the prompt or lower max_new_tokens",
            field="prompt",
            code="context_length_exceeded",
        )
    least = charge(prompt_len, 1 if asked is None else asked, page)  # with nothing of it cached
    if least >= pool:
        raise _never_fits(f"its charge of {least} tokens reaches {reach} (page size {page})", pinned)
    if asked is not None:
        if prompt_len + asked > pool:
            raise _never_fits(f"prompt ({prompt_len}) + max_new_tokens ({asked}) exceeds {reach}", pinned)
        return asked
    allowed = min(context, pool) - prompt_len
    slack = pool - charge(prompt_len, 0, page) - 1  # the charge must stay below the pool
    return allowed if slack >= CLIP_NEW_TOKENS else min(allowed, slack)


def check_prompt_length(length: int, context: int, *, field: str = "prompt") -> None:
    """Raises `RequestError` for a prompt after which no token fits into the context."""
    if length >= context:
        raise RequestError(
            f"the prompt has {length} tokens; with one more for the answer it exceeds {context}, {_CONTEXT}; "
            "shorten the prompt",
            field=field,
            code="context_length_exceeded",
        )


def _never_fits(why: str, pinned: int) -> RequestError:
    unpin = "unpin something, " if pinned else ""
    return RequestError(
        f"the request can never fit: {why}; "
        f"shorten it, lower max_new_tokens, {unpin}or start with a larger cache.pool_tokens",
        field="prompt",
        code="never_fits",
    )
