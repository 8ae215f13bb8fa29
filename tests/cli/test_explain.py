"""`rtk explain` against a real port, over a scripted scheduler."""

import json
from collections.abc import Iterator

import pytest
from fake_scheduler import saying, timeline
from http_harness import Served
from typer.testing import CliRunner

from rtk.schedule.messages import ExplainRequest
from rtk.schedule.timeline import Wait
from rtk.serve.http.rights import AdminRights
from rtk_cli.main import app

KEY = "s3cret"


@pytest.fixture(scope="module")
def http() -> Iterator[Served]:
    with Served(saying(), settings={"admin": AdminRights(key=KEY)}) as http:
        yield http


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTK_SERVE__ADMIN_API_KEY", KEY)


def rtk(http: Served, *args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["explain", *args, "--url", http.base])
    assert "Traceback" not in result.output
    return result.exit_code, result.stdout, result.stderr


def test_sentences(http: Served) -> None:
    http.fake.timeline = timeline(rid="tide", waits=(Wait("kv", 2.5),), queue_s=2.5)
    code, out, err = rtk(http, "tide")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "It came with 4 prompt tokens; nobody was waiting.",
        "It has been waiting 2.500 s for KV capacity.",
        "Order cost it nothing: nobody who came later was started before it.",
    ]


def test_all_that_is_known(http: Served) -> None:
    http.fake.timeline = timeline(rid="tide")
    code, out, _ = rtk(http, "tide", "--json")
    told = json.loads(out)
    assert (code, told["rid"], len(told["sentences"])) == (0, "tide", 3)


@pytest.mark.parametrize("rid", ["a/b", "a b?c%d", "\u00e9", "..", "x/../y"])
def test_any_id(http: Served, rid: str) -> None:
    assert rtk(http, rid)[0] == 0
    assert http.fake.of(ExplainRequest)[-1].name == rid


def test_what_others_are_called_cannot_steer_a_terminal(http: Served) -> None:
    http.fake.timeline = timeline(notes=("\x1b[31mred\nnew line",))
    assert "The schedule policy said meanwhile: \\x1b[31mred\\nnew line.\n" in rtk(http, "tide")[1]


def test_what_the_server_refuses(http: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rtk(http, "nobody") == (1, "", "error: nobody knows it (unknown_request)\n")
    monkeypatch.delenv("RTK_SERVE__ADMIN_API_KEY")
    code, out, err = rtk(http, "tide")
    assert (code, out) == (1, "")
    assert err.endswith("(admin_unauthorized); rtk takes it from --admin-key or RTK_SERVE__ADMIN_API_KEY\n")
