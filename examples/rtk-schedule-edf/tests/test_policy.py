import pytest

from rtk.plugin.testing import Subject, suite
from rtk.plugin.testing.harness import Harness
from rtk_schedule_edf import PolicyOptions
from rtk_schedule_edf.policy import Policy


def served(options: PolicyOptions) -> list[str]:
    harness = Harness(max_running=1, schedule=Policy(options))
    harness.add("runs", [1], max_new_tokens=2)
    harness.step()
    for rid, deadline_s in {"never": None, "late": 90.0, "soon": 40.0, "as soon": 40.0}.items():
        harness.add(rid, [7], max_new_tokens=1, deadline_s=deadline_s)
    harness.run()
    return list(harness.finished)


def test_the_earliest_deadline_goes_first():
    assert served(PolicyOptions()) == ["runs", "soon", "as soon", "late", "never"]


def test_without_a_deadline_there_may_be_a_usual_one():
    assert served(PolicyOptions(default_s=60)) == ["runs", "soon", "as soon", "never", "late"]
    assert served(PolicyOptions(default_s=1)) == ["runs", "never", "soon", "as soon", "late"]


def test_who_has_most_time_left_makes_room():
    harness = Harness(pool_tokens=24, schedule=Policy(PolicyOptions()), conservativeness=0.01)
    harness.add("soon", [1, 2], max_new_tokens=18, deadline_s=500)
    harness.add("late", [3, 4], max_new_tokens=18, deadline_s=900)
    harness.run()
    assert list(harness.finished) == ["soon", "late"]
    assert harness.stat("retractions") > 0


@pytest.mark.parametrize("check", suite("schedule"), ids=str)
def test_other_options_keep_the_contract_too(check):
    check(Subject(lambda: Policy(PolicyOptions(default_s=2.5)), requires=frozenset()))
