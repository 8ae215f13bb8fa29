"""How a scheduler forms its batches."""

from dataclasses import dataclass
from typing import Literal

Retraction = Literal["length", "priority"]
"""Who is retracted first: those who generated least, or the least important (of those, who generated least)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `schedule.*` configures of the step itself; sizes are in `Limits`."""

    conservativeness: float = 1.0
    """Scales the share of running answers that admission reserves; higher admits fewer and retracts less."""
    mixed_chunk: bool = False
    """Whether running requests decode in the steps that compute prompts, instead of waiting for them."""
    retraction: Retraction = "length"
    overlap: bool = False
    """Whether a step is launched before the results of the one before are taken in."""
    jump_forward: bool = True
    """Whether tokens that a grammar leaves no choice of are computed along with those before them."""
    max_queue: int | None = None
    """Requests that may wait; None: any number."""
    max_wait_s: float | None = None
    """Longest wait for a start, in seconds; None: any."""
