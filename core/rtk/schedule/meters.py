"""What is measured beside the scheduler: how long requests wait, what their tokens take, and where a step's time goes.

Plain numbers in bounded memory, which travel in `Stats`. Times are the scheduler's clock's. Whatever a request came to,
nothing here raises: what cannot be measured is counted as skipped.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from rtk.observe.histogram import STEP_S, WAIT_S, Distribution, Histogram
from rtk.schedule.messages import Finish
from rtk.schedule.request import Request

Part = Literal["messages", "schedule", "launch", "mask", "wait", "take_in", "between"]
"""What the scheduler's time goes into, see docs/observability.md."""

PARTS: tuple[Part, ...] = ("messages", "schedule", "launch", "mask", "wait", "take_in", "between")
STAGES = ("queued", "prefill", "decode")
"""Where an abort finds a request."""
HISTOGRAMS = {
    "queue_seconds": WAIT_S,
    "time_to_first_token_seconds": WAIT_S,
    "inter_token_seconds": STEP_S,
    "time_per_output_token_seconds": STEP_S,
    "request_seconds": WAIT_S,
    "step_seconds": STEP_S,
}
"""Their bounds, by name."""


class Meters:
    """See the module. Belongs to the scheduler's thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._histograms = {name: Histogram(bounds) for name, bounds in HISTOGRAMS.items()}
        self._queue = self._histograms["queue_seconds"]
        self._first_token = self._histograms["time_to_first_token_seconds"]
        self._inter_token = self._histograms["inter_token_seconds"]
        self._per_token = self._histograms["time_per_output_token_seconds"]
        self._request = self._histograms["request_seconds"]
        self._step = self._histograms["step_seconds"]
        self._parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._part: Part = "between"
        self._now = self._results_s = self._before_s = clock()
        self._alike = 0  # tokens of the last step whose requests had one in the step before it too
        self._steps: dict[int, float] = {}  # those under way, and when they were launched
        self._aborts = Counter(dict.fromkeys(STAGES, 0))
        self._failed: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._tokenless = 0

    # --- steps --------------------------------------------------------------------------------------------------

    def enter(self, part: Part) -> Part:
        """From here on time goes into `part`; answers what it went into before. O(1)."""
        now, before = self._clock(), self._part
        if now > self._now:  # else the clock went back
            self._parts[before] += now - self._now
        self._now, self._part = now, part
        return before

    def launched(self, step: int, starting: Iterable[Request]) -> None:
        """A step begins now; `starting` are those whose prompts it computes. O(starting)."""
        self._steps[step] = now = self._clock()
        for request in starting:
            if request.started_s is None:
                request.started_s = now
                if request.pin is None:
                    self._queue.observe(now - request.arrival_s)

    def retired(self, step: int) -> None:
        """The results of a step are there, or it has failed; what becomes of its rows comes next. O(1)."""
        self._count_alike()
        self._before_s, self._results_s = self._results_s, self._clock()
        self._step.observe(self._results_s - self._steps.pop(step))

    # --- requests -----------------------------------------------------------------------------------------------

    def refused(self, code: str) -> None:
        """A request was not accepted."""
        self._refused[code] += 1

    def took(self, request: Request) -> None:
        """A token of a request came with the step whose results were there last. O(1)."""
        now, last = self._results_s, request.last_token_s
        request.last_token_s = now
        if last == self._before_s:  # as of most: their last token came with the step before
            self._alike += 1
        elif last is None:
            request.first_token_s = now
            self._first_token.observe(now - request.arrival_s)
        else:
            self._inter_token.observe(now - last)

    def _count_alike(self) -> None:
        if self._alike:
            self._inter_token.observe(self._results_s - self._before_s, self._alike)
            self._alike = 0

    def ended(self, request: Request, finish: Finish, *, ran: bool) -> None:
        """A request is over, and has not given back anything yet; `ran`: whether it did until now. O(1)."""
        if finish.reason == "abort":
            computed = request.computed_len >= request.fill_len
            self._aborts["queued" if not ran else "decode" if computed else "prefill"] += 1
        elif finish.reason == "error":
            self._failed[finish.code] += 1
        else:
            self._request.observe(self._clock() - request.arrival_s)
        if request.first_token_s is None or request.last_token_s is None:
            self._tokenless += 1
        elif len(request.output) > 1:
            self._per_token.observe((request.last_token_s - request.first_token_s) / (len(request.output) - 1))

    # --- what is asked of it ------------------------------------------------------------------------------------

    def histograms(self) -> dict[str, Distribution]:
        """By name."""
        self._count_alike()
        return {name: histogram.read() for name, histogram in self._histograms.items()}

    def counts(self) -> dict[str, Mapping[str, int | float]]:
        """By name, then by what tells them apart."""
        self.enter(self._part)
        self._count_alike()
        skipped = {f"{name}:clock": histogram.skipped for name, histogram in self._histograms.items()}
        skipped["time_to_first_token_seconds:no_token"] = self._tokenless
        return {
            "step_part_seconds": dict(self._parts),
            "aborts": dict(self._aborts),
            "failed": dict(self._failed),
            "refused": dict(self._refused),
            "skipped": skipped,
        }
