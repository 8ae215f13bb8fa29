import pytest
from rtk.plugin import NodeView
from rtk.plugin.testing import suite

from rtk_eviction_twoq import PolicyOptions
from rtk_eviction_twoq.policy import TwoQueues


def node(created: int, last_use: int, hits: int) -> NodeView:
    return NodeView(id=0, size=1, start=0, created=created, last_use=last_use, hits=hits)


def order(policy: TwoQueues, **nodes: NodeView) -> list[str]:
    return sorted(nodes, key=lambda name: policy.key(nodes[name]))


def test_new_ones_go_in_order_of_entry_and_before_those_that_came_back():
    nodes = {"hot": node(1, 60, 3), "warm": node(2, 50, 1), "late": node(90, 90, 0), "early": node(80, 99, 0)}
    assert order(TwoQueues(PolicyOptions()), **nodes) == ["early", "late", "warm", "hot"]


def test_reuse_within_the_burst_does_not_move_up():
    nodes = {"burst": node(10, 18, 9), "later": node(20, 20, 0), "back": node(10, 19, 1)}
    assert order(TwoQueues(PolicyOptions(burst=8)), **nodes) == ["burst", "later", "back"]


def test_a_lead_lets_what_is_long_forgotten_go_before_what_is_new():
    nodes = {"forgotten": node(1, 60, 3), "new": node(100, 100, 0), "hot": node(2, 95, 2)}
    assert order(TwoQueues(PolicyOptions(lead=30)), **nodes) == ["forgotten", "new", "hot"]


@pytest.mark.parametrize("check", suite("eviction"), ids=str)
@pytest.mark.parametrize("options", [PolicyOptions(burst=0, lead=0), PolicyOptions(burst=3, lead=20)], ids=str)
def test_other_options_keep_the_contract_too(check, options):
    check(lambda: TwoQueues(options))
