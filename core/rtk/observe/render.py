"""A snapshot as text that Prometheus reads."""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from rtk.observe.histogram import Distribution
from rtk.observe.series import SERIES, Series, Snapshot


def rendered(snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
    """The text and its type, in the format that the client prefers."""
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(accept)
    return encode(_Families(snapshot)), content_type


class _Families:
    """What prometheus-client takes for a registry."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Any]:
        """The series, in their order."""
        for series in SERIES:
            yield _family(series, self._snapshot)


def _family(series: Series, snapshot: Snapshot) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}
    family = kinds[series.kind](series.name, series.about, labels=series.labels)
    for labels, value in series.read(snapshot).items():
        if isinstance(value, Distribution):
            family.add_metric(labels, buckets=_buckets(value), sum_value=value.total)
        else:
            family.add_metric(labels, value)
    return family


def _buckets(values: Distribution) -> list[tuple[str, float]]:
    names = [*map(str, values.bounds), "+Inf"]
    return list(zip(names, map(float, accumulate(values.counts)), strict=True))
