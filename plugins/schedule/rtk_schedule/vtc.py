"""Virtual token counter: tenants share the engine by weight, whoever sends more (Sheng et al., arXiv:2401.00588).

Every tenant has a counter of the tokens that were computed for it, each at its price, divided by the tenant's weight.
The tenant with the lowest goes first, its requests in order of arrival; inside one ranking each request counts as
charged for its prompt before the tenant's next is placed. Who had nothing waiting saves nothing up: its
counter is lifted to the lowest of those who wait. The most served tenant makes room first.

While two tenants both have requests waiting, their counters differ by at most
2 * max(`input_weight` * longest prompt, `output_weight` * tokens that running requests may generate) / lowest weight,
however long that lasts; so the one that is behind is served next, and none waits for more than that.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rtk.plugin import Columns, Options, Plugin, Progress, RequestView, ScheduleContext, SchedulePolicy, hookimpl

Weight = Annotated[float, Field(ge=1e-6, le=1e6)]
"""Sums of such prices stay finite, however long the engine runs."""


class VtcOptions(Options):
    input_weight: Weight = Field(1.0, description="price of a prompt token that is computed")
    output_weight: Weight = Field(2.0, description="price of a token that is generated")
    weights: dict[str, Weight] = Field({}, description="shares of tenants by name; 1 for who is not named")


class Vtc(SchedulePolicy):
    def __init__(self, options: VtcOptions) -> None:
        self._options = options
        self._counters: dict[int, float] = {}
        self._weights: dict[int, float] = {}
        self._waiting: set[int] = set()  # tenants, at the last ranking
        self._lowest = 0.0  # counter of those who waited: what newcomers are lifted to

    def rank(self, columns: Columns, ctx: ScheduleContext) -> tuple[NDArray[np.float64]]:
        tenants = np.flatnonzero(np.bincount(columns.tenant)).tolist()
        for tenant in tenants:
            self._weights.setdefault(tenant, self._options.weights.get(ctx.tenants[tenant], 1.0))
        self._lift(set(tenants))
        price = np.zeros(max(tenants, default=0) + 1)
        counter = np.zeros(len(price))
        for tenant in tenants:
            price[tenant] = self._options.input_weight / self._weights[tenant]
            counter[tenant] = self._counters[tenant]
        by_tenant = np.argsort(columns.tenant, kind="stable")
        owner = columns.tenant[by_tenant]
        charge = (columns.prompt_len + columns.output_len)[by_tenant] * price[owner]
        before = np.cumsum(charge) - charge
        begins = np.searchsorted(owner, owner)  # where the tenant of each begins
        key = np.empty(len(columns))
        key[by_tenant] = counter[owner] + before - before[begins]
        return (key,)

    def _lift(self, waiting: set[int]) -> None:
        """Who comes to wait starts no lower than those who wait, or who were the last to."""
        if others := waiting & self._waiting or self._waiting:
            self._lowest = max(self._lowest, min(self._counters[tenant] for tenant in others))
        for tenant in waiting - self._waiting:
            self._counters[tenant] = max(self._counters.get(tenant, 0.0), self._lowest)
        self._waiting = waiting

    def on_progress(self, deltas: Sequence[Progress]) -> None:
        for delta in deltas:
            spent = self._options.input_weight * delta.prefill + self._options.output_weight * delta.decode
            spent /= self._weights.get(delta.tenant, 1.0)
            self._counters[delta.tenant] = self._counters.get(delta.tenant, 0.0) + spent

    def retract_key(self, view: RequestView) -> tuple[float]:
        return (-self._counters.get(view.tenant, 0.0),)


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="schedule",
            name="vtc",
            summary="virtual token counter: tenants share the engine by weight",
            target="rtk_schedule.vtc:Vtc",
            options=VtcOptions,
            requires=frozenset({"tenant"}),
        )
    ]
