"""From a message to a request: what the scheduler resolves when it takes one in."""

import math
import random
from collections.abc import Callable

from rtk.cache.key import TOKEN_BYTES, Key
from rtk.errors import RequestError
from rtk.schedule.budget import Limits, resolve_max_new_tokens
from rtk.schedule.messages import NewRequest, Pin
from rtk.schedule.params import SamplingParams
from rtk.schedule.request import Request
from rtk.schedule.scoring import PromptScores
from rtk.schedule.token_counts import token_counts

MatchStop = Callable[[SamplingParams, bytes], Callable[[int], str | None]]
"""From a request's parameters and packed prompt, the checker that is fed its output tokens."""


class Arrivals:
    """Numbers arrivals, and draws the seeds of those that have none."""

    def __init__(
        self, limits: Limits, end_tokens: frozenset[int], match_stop: MatchStop, clock: Callable[[], float]
    ) -> None:
        self._limits = limits
        self._end_tokens = end_tokens
        self._match_stop = match_stop
        self._clock = clock
        self._count = 0

    def request(self, new: NewRequest, pin: Pin | None, rng: random.Random, *, prefilled: int, pinned: int) -> Request:
        """The request of a message, `pin` the order whose prefix it computes.

        `prefilled`: tokens that the engine has prefilled so far; `pinned`: tokens of the pool that are out of reach.
        Raises `RequestError` for one that could never run.
        """
        params, prompt_len = new.params, len(new.tokens) // TOKEN_BYTES
        if not prompt_len:
            raise RequestError("the prompt is empty", field="prompt", code="empty_prompt")
        self._count += 1
        arrival_s = self._clock() if new.arrival_s is None else new.arrival_s
        return Request(
            rid=new.rid,
            id=self._count,
            prompt_len=prompt_len,
            tokens=bytearray(new.tokens),
            params=params,
            key=Key(new.namespace, new.tokens),
            priority=new.priority,
            max_new_tokens=resolve_max_new_tokens(prompt_len, params.max_new_tokens, self._limits, pinned),
            seed=rng.getrandbits(63) if params.seed is None else params.seed,
            arrival_s=arrival_s,
            prefilled_at_arrival=prefilled,
            stop_token_ids=frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._end_tokens),
            match_stop=self._match_stop(params, new.tokens) if params.stop else None,
            pin=pin,
            tenant=new.tenant,
            routing_key=new.routing_key,
            deadline_s=math.inf if new.deadline_s is None else arrival_s + new.deadline_s,
            leader=new.leader,
            counts=token_counts(params, new.tokens),
            scores=None if params.prompt_logprobs is None else PromptScores(new.tokens, params),
        )
