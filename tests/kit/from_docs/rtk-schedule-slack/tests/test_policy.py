import math

import pytest
from rtk_schedule_slack import PolicyOptions
from rtk_schedule_slack.policy import Policy

from rtk.plugin import RequestView
from rtk.plugin.testing import Check, Subject, suite
from rtk.plugin.testing.harness import Harness


def finished(*waiting: tuple[str, int, int, float]) -> list[str]:
    """The order in which requests of that prompt, answer and deadline end, one at a time."""
    harness = Harness(max_running=1, schedule=Policy(PolicyOptions(tokens_per_s=1)))
    harness.add("runs", [1], max_new_tokens=2)
    harness.step()
    for place, (rid, prompt, answer, deadline) in enumerate(waiting, start=1):
        tokens = list(range(100 * place, 100 * place + prompt))
        harness.add(rid, tokens, max_new_tokens=answer, deadline_s=deadline)
    harness.run()
    return list(harness.finished)[1:]


def test_the_least_slack_goes_first() -> None:
    order = finished(("short", 5, 2, 1e6), ("prompt", 50, 2, 1e6), ("answer", 5, 60, 1e6))
    assert order == ["answer", "prompt", "short"]
    assert finished(("long", 60, 2, 1e6), ("soon", 5, 2, 1e6 - 90)) == ["soon", "long"]


def test_ties_go_by_arrival() -> None:
    assert finished(("b", 5, 2, 1e6), ("a", 4, 3, 1e6)) == ["b", "a"]
    assert finished(("b", 5, 2, math.inf), ("a", 50, 2, math.inf), ("due", 5, 2, 1e6)) == ["due", "b", "a"]


def test_the_most_slack_makes_room() -> None:
    def running(output_len: int, deadline_s: float) -> RequestView:
        return RequestView(
            id=0,
            arrival_s=0.0,
            prompt_len=8,
            max_new_tokens=20,
            matched_len=8,
            prefilled_since_arrival=0,
            priority=0,
            output_len=output_len,
            deadline_s=deadline_s,
        )

    tight, late, free = running(3, 50.0), running(15, 50.0), running(3, math.inf)
    assert sorted([tight, late, free], key=Policy(PolicyOptions()).retract_key) == [free, late, tight]


@pytest.mark.parametrize("check", suite("schedule"), ids=str)
def test_other_options_keep_the_contract_too(check: Check) -> None:
    check(Subject(lambda: Policy(PolicyOptions(tokens_per_s=0.001)), requires=frozenset({"prefix_match"})))
