"""What the ledger tells of requests, as plain data: a record of each attempt to admit one, and a timeline of each.

Seconds of a timeline count from the arrival of its request; the `time` of an attempt that stands alone is the
scheduler's clock. Timelines know requests by the ids that clients gave them.
"""

from typing import Literal

import msgspec

Cause = Literal[
    "step", "kv", "input", "chunk", "rows", "alignment", "cut", "prefix", "decode", "hold", "compile", "leader"
]
"""Why a request waits, itself or the one that planning stopped at:

- `step`: the step under way had to end first; nobody was refused
- `kv`: no KV capacity; `rows`: no free request row; `input`, `chunk`: no tokens left in an account of the step
- `alignment`: what is left of the step is less than a page; `cut`: another request's prompt is cut already
- `prefix`: the step computes, for another request, what its prompt begins with
- `decode`: the schedule policy wants the step for those who decode; `hold`: it holds the request back
- `compile`: its grammar is being compiled, or waits for its turn; until then it is not in the queue
- `leader`: the first of several answers to its prompt computes that; until then it is not in the queue either
"""


Reason = Literal["", "kv", "input", "chunk", "alignment", "cut", "rows", "prefix"]
"""What refused an attempt, of the causes; empty: nothing."""

RetractedFor = Literal["memory", "preempted"]
"""Why a request is retracted: those who decode need its slots, or a more important one takes its place."""


class Accounts(msgspec.Struct, frozen=True, gc=False):
    """The balances of one planning round, see `rtk.schedule.admission.Balances`."""

    current: int
    """KV slots, without what this round computes."""
    total: float
    """KV slots, without what this round computes and what is reserved for output."""
    input_tokens: int
    """Of the step."""
    chunk_tokens: int | None
    """Of the step; null where prompts are not cut."""
    rows: int
    """Request rows."""


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One look at one candidate: what it asked for, what it got, and what that did to the accounts."""

    rid: str
    step: int
    """For which the round was planned."""
    time: float
    rho: float
    """The share of running answers that was reserved: the new-token ratio."""
    prefix: int
    """Tokens that are cached, or computed by the pieces before."""
    candidate: int
    """Tokens to compute beyond these."""
    selected: int
    """Of these, in this step; 0: refused."""
    is_chunked: bool
    """Whether some are left for later steps."""
    charge: int
    """What it costs of the total, or would have cost."""
    locked: int
    """Cached slots that it takes from both balances by locking them, or would have taken."""
    before: Accounts
    after: Accounts
    verdict: Literal["CONTINUE", "NO_TOKEN", "OTHER"]
    reason: Reason = ""


class Attempts(msgspec.Struct, frozen=True, kw_only=True):
    """A request's attempts that ended alike: how many, the first and the last."""

    reason: Reason
    """What refused it; empty: it was admitted, or went on."""
    count: int
    first: AttemptRecord
    last: AttemptRecord


class Wait(msgspec.Struct, frozen=True, gc=False):
    """A part of the time in the queue."""

    cause: Cause
    seconds: float


class Behind(msgspec.Struct, frozen=True, gc=False):
    """The request at which planning stopped longest while this one waited behind it."""

    rid: str
    cause: Cause
    seconds: float


class Overtaken(msgspec.Struct, frozen=True, gc=False):
    """Requests that arrived later and were started before."""

    requests: int
    tokens: int
    """That they had to compute."""
    complete: bool
    """False: there may be more; the ledger remembers so many starts only."""


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """A piece of a prompt that was computed in one step; a prompt that was not cut has one."""

    step: int
    start: int
    stop: int
    done_s: float
    seconds: float
    """Of the forward."""
    decode_steps: int
    """Steps that only decoded between the piece before and this one."""
    other_tokens: int
    """Prompt tokens of other requests in the same step."""
    decoding: int
    """Requests that decoded in the same step."""


class FirstToken(msgspec.Struct, frozen=True, gc=False):
    """When the first token was there, and what the time went into: the three parts add up to it."""

    after_s: float
    queue_s: float
    forward_s: float
    """Steps that computed the prompt."""
    between_s: float
    """Between these."""


class Gap(msgspec.Struct, frozen=True, gc=False):
    """The longest time from one token to the next, and what else happened in it."""

    seconds: float
    ended_s: float
    retracted: bool
    """Whether the request itself was retracted in it."""
    others_retracted: int
    prefill_tokens: int
    """Computed for other requests' prompts."""
    prefill_s: float
    """In steps that did nothing else."""
    mixed: bool
    """Whether the step that made the token computed prompts too."""
    prefill_by: str
    """The request that most of these tokens were for."""


class Decoding(msgspec.Struct, frozen=True, kw_only=True):
    """The time from the first token on, without that spent waiting again after a retraction."""

    seconds: float
    steps: int
    """That made a token for it, mixed ones among them."""
    prefill_steps: int
    """That computed nothing but other requests' prompts."""
    prefill_s: float
    prefill_tokens: int
    mixed_steps: int
    """That made tokens and computed other requests' prompts."""
    mixed_s: float
    mixed_tokens: int
    """Of prompts."""
    gap: Gap | None


class Retraction(msgspec.Struct, frozen=True, kw_only=True):
    """One time that the request had to make room."""

    step: int
    after_s: float
    why: RetractedFor
    made_room_for: tuple[str, ...]
    """The requests that stayed, or the one that took its place; the first few."""
    others: int
    """How many more there are."""
    output_tokens: int
    """That it had."""
    again_s: float | None = None
    """When it was started again; None: not yet, or never."""
    cached_tokens: int = 0
    """Of what it then needed."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one request."""

    rid: str
    """The client's."""
    state: Literal["waiting", "running", "finished"]
    age_s: float
    """From its arrival to its end, or until now."""
    end: str | None
    """How it ended: the reason that its client was given."""
    problem: str
    """What went wrong, where something did."""
    prompt_tokens: int
    output_tokens: int
    waiting_at_arrival: int
    """Requests that were waiting when it came."""
    started_s: float | None
    cached_tokens: int
    """Of the prompt, when it was started."""
    queue_s: float
    """In the queue, again after retractions too."""
    waits: tuple[Wait, ...]
    """What this consists of, longest first."""
    behind: Behind | None
    overtaken: Overtaken
    notes: tuple[str, ...]
    """What the schedule policy said while it waited."""
    attempts: tuple[Attempts, ...]
    chunks: tuple[Chunk, ...]
    """The first and the last few."""
    chunk_count: int
    forward_s: float
    """All its chunks together."""
    first_token: FirstToken | None
    decoding: Decoding | None
    retractions: tuple[Retraction, ...]
    """The first and the last few."""
    retraction_count: int
