import pytest

from rtk.plugin import NodeView
from rtk.plugin.testing import suite, trace
from rtk_eviction_gdsf import PolicyOptions
from rtk_eviction_gdsf.policy import Policy


def node(id: int, **facts: int) -> NodeView:
    return NodeView(**{"id": id, "size": 2, "start": 0, "created": 0, "last_use": 0, "hits": 0} | facts)


def test_worth_is_uses_by_cost_of_a_token():
    policy = Policy(PolicyOptions(attention_tokens=10))
    assert policy.key(node(1)) == (1.1,)
    assert policy.key(node(1, hits=3)) == (4.4,)
    assert policy.key(node(1, start=19)) == (3.0,)


def test_what_was_used_before_others_left_is_overtaken():
    policy = Policy(PolicyOptions(attention_tokens=10))
    policy.on_insert(node(1))
    policy.on_evict(node(9), (5.0,))
    policy.on_insert(node(2))
    assert [policy.key(node(1)), policy.key(node(2))] == [(1.1,), (6.1,)]
    policy.on_hit(node(1))
    assert policy.key(node(1)) == (6.1,)


def test_what_has_left_is_forgotten():
    policy = Policy(PolicyOptions())
    policy.on_insert(node(1))
    policy.on_evict(node(1), policy.key(node(1)))
    assert policy._since == {}


def test_it_hits_more_of_growing_conversations_than_first_in_first_out():
    requests = trace.conversations()
    assert trace.replay(requests, 200, Policy(PolicyOptions())).rate > 0.4


@pytest.mark.parametrize("check", suite("eviction"), ids=str)
def test_other_options_keep_the_contract_too(check):
    check(lambda: Policy(PolicyOptions(attention_tokens=1)))
