"""One request as the scheduler knows it."""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from rtk.cache.key import Key, pack
from rtk.cache.lease import Lease
from rtk.grammar.constraint import Constraint
from rtk.schedule.messages import Finish, GrammarOrder, Pin, TokenLogprobs
from rtk.schedule.params import SamplingParams
from rtk.schedule.scoring import PromptScores
from rtk.schedule.token_counts import TokenCounts


class Status(enum.Enum):
    """Where a request is. It holds a row, a lease and slots while `RUNNING`, and nothing otherwise."""

    COMPILING = enum.auto()
    """Its grammar is; afterwards it follows or waits."""
    FOLLOWING = enum.auto()
    """Its leader computes the prompt of both; afterwards it waits."""
    WAITING = enum.auto()
    RUNNING = enum.auto()
    FINISHED = enum.auto()


@dataclass(slots=True, eq=False)
class Request:
    """State of one request. Each field names its writer; everything else is derived."""

    rid: str
    id: int
    """Arrival number."""
    prompt_len: int
    tokens: bytearray
    """Prompt and output, packed. Written by `append`."""
    params: SamplingParams
    key: Key
    """The tokens up to `fill_len`, as the cache looks them up."""
    priority: int
    max_new_tokens: int
    """Resolved: what was asked for, or what context and pool allow."""
    seed: int
    """Of the request's draws."""
    arrival_s: float
    prefilled_at_arrival: int
    """Tokens the engine had prefilled when the request arrived."""
    stop_token_ids: frozenset[int]
    """Every token that ends the text: the model's own unless ignored, and the request's."""
    match_stop: Callable[[int], str | None] | None = None
    """Fed each output token; answers the stop string that it completes."""
    pin: Pin | None = None
    """The order that this computes the prefix of; such a request generates nothing."""
    tenant: str = ""
    """Whose request it is."""
    routing_key: str = ""
    """What the client groups requests by; empty: nothing."""
    deadline_s: float = math.inf
    """When it must have ended, by the scheduler's clock; infinite: any time."""
    grammar: GrammarOrder | None = None
    """What its answer must look like."""
    constraint: Constraint | None = None
    """Where the answer stands in that, kept through retractions. Set before it first waits, if it has a grammar."""
    leader: str | None = None
    """The request whose prompt is the same, and which computes it for both."""
    counts: TokenCounts | None = None
    """What its text holds, if there are penalties on that."""
    scores: PromptScores | None = None
    """Log-probabilities of its prompt, if they are asked for."""

    status: Status = Status.WAITING
    output: list[int] = field(default_factory=list)
    finish: Finish | None = None
    """Set once, by the scheduler's `_end`."""
    fill_len: int = 0
    """Tokens to compute before it decodes: the prompt, and the output that it had when it was retracted last."""
    retractions: int = 0
    """How often it had to make room for others."""

    # Written by the meters.
    started_s: float | None = None
    """When the first step began that computes something of it."""
    first_token_s: float | None = None
    """When its first token was there."""
    last_token_s: float | None = None
    """When its latest token was there."""

    wants_more: bool = field(init=False)
    """Whether it asks for what most do without: `min_p`, a bias, log-probabilities."""

    # Written when admission is committed, and by the steps that follow.
    row: int = 0
    lease: Lease | None = None
    cached_len: int = 0
    """Prompt tokens that came from the cache."""
    planned_len: int = 0
    """Positions whose K/V is in the pool after the step that is planned."""
    launched_len: int = 0
    """The same after the steps that are launched."""
    computed_len: int = 0
    """The same after the steps whose results were taken in."""
    in_flight: int = 0
    """Steps it is part of that are launched and not taken in. Until there are none, its row and slots stay its own."""
    sampled: int = 0
    """Output tokens sampled by the steps that are launched: `output`, and what of it is still in flight."""
    capacity: int = 0
    """Positions that have a slot, a multiple of the page size."""

    def __post_init__(self) -> None:
        self.fill_len = self.prompt_len
        params = self.params
        self.wants_more = bool(params.min_p or params.logit_bias or params.logprobs is not None)

    @property
    def has_started(self) -> bool:
        """Whether it runs, or has run."""
        return self.status in (Status.RUNNING, Status.FINISHED) or self.retractions > 0

    @property
    def prompt_is_computed(self) -> bool:
        """Whether all of its prompt has been computed, be it before a retraction."""
        return bool(self.output) or self.computed_len >= self.prompt_len

    @property
    def hit_limit(self) -> int:
        """Tokens that it may take from the cache: not the last one, and none behind which one is to be scored."""
        first = None if self.scores is None else self.scores.first_position
        return self.fill_len - 1 if first is None else min(first, self.fill_len - 1)

    @property
    def length(self) -> int:
        """Tokens of prompt and output."""
        return self.prompt_len + len(self.output)

    @property
    def sampled_length(self) -> int:
        """Tokens of prompt and output, with those still in flight."""
        return self.prompt_len + self.sampled

    @property
    def left(self) -> int:
        """Tokens that it may still generate; none for one that is known to end with the steps in flight."""
        return self.max_new_tokens - self.sampled

    @property
    def last_position(self) -> int:
        """Positions that may ever need a slot: the last sampled token is never computed."""
        return self.prompt_len + max(0, self.max_new_tokens - 1)

    def append(self, token: int) -> None:
        """Take one sampled token in."""
        self.output.append(token)
        if self.counts is not None:
            self.counts.add(token)
        self.tokens += pack([token])

    def take_scores(self) -> tuple[TokenLogprobs, ...]:
        """The log-probabilities of its prompt, for its first output."""
        return () if self.scores is None else self.scores.take()

    def step_back(self) -> None:
        """Wait once more, with the output as part of what has to be computed. Called with nothing held or in flight."""
        self.status = Status.WAITING
        self.fill_len, self.sampled = self.length, len(self.output)
        self.key = Key(self.key.namespace, bytes(self.tokens))
        self.planned_len = self.launched_len = 0
        self.retractions += 1
        if self.constraint is not None:
            self.constraint.moved()

    def forget_guesses(self) -> None:
        """Go on behind what was taken in: what was guessed beyond that is computed anew. Called with nothing in flight.

        Slots behind that stay its own.
        """
        self.planned_len = self.launched_len = self.computed_len
        self.sampled = len(self.output)

    def computed_tokens(self) -> bytes:
        """The packed tokens whose K/V is in the pool. O(length)."""
        return bytes(self.tokens[: self.computed_len * 4])
