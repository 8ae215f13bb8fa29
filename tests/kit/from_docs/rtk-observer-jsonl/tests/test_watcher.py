import json
from pathlib import Path

import pytest
from rtk_observer_jsonl import WatcherOptions
from rtk_observer_jsonl.watcher import Watcher

from rtk.plugin import RequestReport
from rtk.plugin.testing import Check, suite


def report(rid: str, first_token_s: float | None, reason: str) -> RequestReport:
    return RequestReport(
        rid=rid,
        arrival_s=1.0,
        first_token_s=first_token_s,
        ended_s=3.5,
        prompt_tokens=12,
        cached_tokens=8,
        output_tokens=20,
        retractions=1,
        priority=2,
        reason=reason,
    )


def test_a_request_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"rid": "of an earlier start"}\n')
    watcher = Watcher(WatcherOptions(path=path))
    watcher.on_request(report("two\nlines, ü", 1.25, "stop"))
    watcher.on_request(report("r2", None, "abort"))
    _, first, second = map(json.loads, path.read_text().splitlines())
    watcher.close()
    assert first.pop("logged_at") <= second.pop("logged_at")
    same = {"prompt_tokens": 12, "cached_tokens": 8, "output_tokens": 20, "retractions": 1, "priority": 2}
    ended = {**same, "ended_after_s": 2.5}
    assert first == {**ended, "rid": "two\nlines, ü", "reason": "stop", "first_token_after_s": 0.25}
    assert second == {**ended, "rid": "r2", "reason": "abort", "first_token_after_s": None}


def test_without_a_path_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    Watcher(WatcherOptions()).on_request(report("r1", None, "error"))
    assert json.loads(capsys.readouterr().err)["rid"] == "r1"


def test_a_path_that_cannot_be_written_refuses_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        Watcher(WatcherOptions(path=tmp_path / "nowhere" / "requests.jsonl"))


@pytest.mark.parametrize("check", suite("observer"), ids=str)
def test_writing_to_a_file_keeps_the_contract(check: Check, tmp_path: Path) -> None:
    check(lambda: Watcher(WatcherOptions(path=tmp_path / "requests.jsonl")))
