"""What two scrapes of a server say: numbers of now, and of the time between them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Samples = Mapping[tuple[str, ...], float]
"""Values by the name of the series and the values of its labels, these in the order of the labels' names."""

STATES = ("free", "evictable", "protected", "held")
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Scrape:
    """One answer of /metrics."""

    samples: Samples

    def of(self, *key: str) -> float:
        """A value, 0 where there is none."""
        return self.samples.get(key, 0.0)

    def sum_of(self, name: str) -> float:
        """All values of a series together."""
        return sum(value for key, value in self.samples.items() if key[0] == name)

    def counts(self, name: str) -> dict[float, float]:
        """How many values of a histogram are up to each bound."""
        bucket = f"{name}_bucket"
        return {float(key[-1]): value for key, value in self.samples.items() if key[0] == bucket}


NOTHING = Scrape({})


def scraped(text: str) -> Scrape:
    """What a server answers. Raises `ValueError` for what is no such answer."""
    from prometheus_client.parser import text_string_to_metric_families

    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value for sample in samples}
    if ("rtk_up",) not in found:
        raise ValueError("no rtk_up")
    return Scrape(found)


def look(before: Scrape | None, now: Scrape) -> dict[str, Any]:
    """What there is to see, as docs/observability.md lists it; without `before`, since the server's start."""
    up_s = now.of("rtk_uptime_seconds")
    if before is None or before.of("rtk_uptime_seconds") > up_s:  # it has been started anew
        before = NOTHING
    over_s = up_s - before.of("rtk_uptime_seconds")

    def more(name: str, *labels: str) -> float:
        return now.of(name, *labels) - before.of(name, *labels)

    def rate(change: float) -> float | None:
        return change / over_s if over_s > 0 else None

    def seconds(name: str) -> dict[str, float | None]:
        old = before.counts(name)
        counts = {bound: count - old.get(bound, 0.0) for bound, count in now.counts(name).items()}
        return {called: quantile(counts, q) for called, q in QUANTILES.items()}

    hits, misses = more("rtk_prompt_tokens_total", "device"), more("rtk_prompt_tokens_total", "computed")
    finished = "rtk_requests_finished_total"
    return {
        "up": bool(now.of("rtk_up")),
        "stats_age_s": now.of("rtk_stats_age_seconds"),
        "uptime_s": up_s,
        **dict(zip(("version", "model"), _info(now), strict=True)),
        "over_s": over_s,
        "running": int(now.of("rtk_requests_running")),
        "waiting": int(now.of("rtk_requests_waiting")),
        "compiling": int(now.of("rtk_requests_compiling")),
        "following": int(now.of("rtk_requests_following")),
        "queue_full": bool(now.of("rtk_queue_is_full")),
        **{state: int(now.of("rtk_pool_tokens", state)) for state in STATES},
        "pool": int(now.of("rtk_pool_size_tokens")),
        "hit_rate": hits / (hits + misses) if hits + misses > 0 else None,
        "new_token_ratio": now.of("rtk_new_token_ratio"),
        "prefill_tokens_s": rate(more("rtk_prefill_tokens_total")),
        "generated_tokens_s": rate(more("rtk_generated_tokens_total")),
        "steps_s": rate(more("rtk_steps_total")),
        "finished_s": rate(now.sum_of(finished) - before.sum_of(finished)),
        "retractions_s": rate(more("rtk_retractions_total")),
        "retractions": int(now.of("rtk_retractions_total")),
        "ttft_s": seconds("rtk_time_to_first_token_seconds"),
        "inter_token_s": seconds("rtk_inter_token_seconds"),
        "queue_s": seconds("rtk_queue_seconds"),
    }


def _info(now: Scrape) -> tuple[str, str]:
    """Version and model."""
    found = [key for key in now.samples if key[0] == "rtk_info"]
    return (found[0][2], found[0][1]) if found and len(found[0]) == 3 else ("", "")


def quantile(counts: Mapping[float, float], q: float) -> float | None:
    """The value that a share `q` of all does not exceed, straight between the bounds around it; None: there are none.

    `counts`: of values up to each bound. What is above the last bound is told as that bound.
    """
    bounds = [(0.0, 0.0), *sorted(counts.items())]
    wanted = q * bounds[-1][1]
    if bounds[-1][1] <= 0:
        return None
    for (low, below), (high, count) in pairwise(bounds):
        if count >= wanted and count > below:
            return low if math.isinf(high) else low + (high - low) * max(0.0, wanted - below) / (count - below)
    return bounds[-1][0]
