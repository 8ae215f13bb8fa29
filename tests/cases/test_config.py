"""Cases of group (g) about configuration: unknown keys, who wins, what is not installed, and YAML's surprises."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from tiny_tokenizer import byte_level
from typer.testing import CliRunner

from rtk.config.keys import walk
from rtk.config.load import config_from
from rtk.config.tree import config_model
from rtk.errors import ConfigError
from rtk.plugin import Plugin
from rtk.plugin.host import installed
from rtk.plugin.registry import Origin, Registered, Registry
from rtk_cli.main import app


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def show(*args: str, file: str | None = None) -> tuple[int, list[str]]:
    """`rtk config show --sources`: exit code, and values or problems."""
    if file is not None:
        Path("c.yaml").write_text(file)
        args = ("--config", "c.yaml", *args)
    result = CliRunner().invoke(app, ["config", "show", "--sources", *args])
    return result.exit_code, (result.stdout if result.exit_code == 0 else result.stderr).splitlines()


def test_g02_x34_a_misspelt_key_is_refused_with_line_path_and_nearest_name(caplog: pytest.LogCaptureFixture):
    file = "scheduling_polcy: lpm\ncache: {page_sise: 16}\n"
    told = [
        "c.yaml:1: unknown key 'scheduling_polcy'; did you mean schedule.policy?",
        "c.yaml:2: unknown key 'cache.page_sise'; did you mean cache.page_size?",
    ]
    assert show(file=file) == (1, [f"error: {line}" for line in told])
    assert show("--allow-unknown", file=file)[0] == 0
    assert caplog.messages == told


def test_g03_x34_line_over_environment_over_file_over_default(monkeypatch: pytest.MonkeyPatch):
    key, variable = "schedule.chunked_prefill_size", "RTK_SCHEDULE__CHUNKED_PREFILL_SIZE"
    file = "schedule: {chunked_prefill_size: 64}\n"
    monkeypatch.setenv(variable, "128")
    assert f"{key} = 256  # flag --chunked-prefill-size" in show("--chunked-prefill-size", "256", file=file)[1]
    assert f"{key} = 128  # variable {variable}" in show(file=file)[1]
    monkeypatch.setenv(variable, "")
    assert f"{key} = 64  # c.yaml:1" in show(file=file)[1]
    monkeypatch.delenv(variable)
    assert f"{key} = 64  # c.yaml:1" in show(file=file)[1]
    assert f"{key} = null  # default" in show(file="")[1]


def test_x34_a_wrong_prefix_in_the_environment_is_unknown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RTKI_SCHEDULE__POLICY", "lpm")
    assert show() == (1, ["error: unknown variable RTKI_SCHEDULE__POLICY; did you mean RTK_SCHEDULE__POLICY?"])


def test_g06_a_plugin_that_is_not_there_is_told_with_what_is():
    code, (line,) = show(file="eviction: {policy: slur}\n")
    assert code == 1
    names = ", ".join(installed().names("eviction"))
    assert line == (
        f"error: c.yaml:1: eviction.policy = 'slur': unknown eviction plugin 'slur'; installed: {names}; "
        "did you mean 'slru'?"
    )


def test_g14_a_bad_value_in_the_environment_names_its_variable(monkeypatch: pytest.MonkeyPatch):
    variables = [key.variable for key in walk(config_model(installed())) if int in key.types or bool in key.types]
    for name in variables:
        monkeypatch.setenv(name, "wr?ng")
    code, lines = show()
    assert (code, len(lines)) == (1, len(variables))
    for name, line in zip(variables, lines, strict=True):
        assert f" = 'wr?ng' (variable {name}): must be " in line


@pytest.mark.parametrize("text", ["yes", "no", "on", "1e3", "12:30"])
def test_g15_yaml_turns_nothing_into_another_type(text: str):
    code, (line,) = show(file=f"\ncache:\n  page_size: {text}\n")
    assert code == 1
    shown = "1000.0" if text == "1e3" else repr(text)
    assert line == f"error: c.yaml:3: cache.page_size = {shown}: must be an integer from 1 to 2147483647, or null"
    code, (line,) = show(file=f"\n{text}: 5\n")
    assert code == 1
    key = text.partition(":")[0] + "…" if ":" in text else text  # what follows may be a secret's
    assert line == f"error: c.yaml:2: unknown key {key!r}; see 'rtk config show'"
    if text != "1e3":
        assert f"model.served_name = {text}  # c.yaml:1" in show(file=f"model: {{served_name: {text}}}\n")[1]


# --- G13: a backend that takes pages of 64 tokens only ---------------------------------------------------------------


@pytest.fixture
def pages64(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Such a backend is installed beside torch's; gives the page sizes that it is asked to lay a pool out for."""
    from rtk_attention.torch.backend import TorchAttention

    laid_out = []

    class Pages64(TorchAttention):
        capabilities = replace(TorchAttention.capabilities, page_sizes=frozenset({64}))

        def layout(self, shape, page_size, kv_dtype):
            laid_out.append(page_size)
            return super().layout(shape, page_size, kv_dtype)

    described = Plugin(kind="attention", name="pages64", summary="s", target=f"{__name__}:Pages64")
    others = [one for one in installed().all() if one.plugin.kind != "attention" or one.plugin.name == "torch"]
    registry = Registry([*others, Registered(described, Origin("e", "rtk-attention-pages64", "1"))])
    monkeypatch.setitem(sys.modules, __name__, SimpleNamespace(Pages64=Pages64))
    for place in ("rtk.plugin.host", "rtk.config.load", "rtk.serve.runtime"):
        monkeypatch.setattr(f"{place}.installed", lambda: registry)
    return laid_out


@pytest.mark.parametrize("tokens", [1, 16])
def test_g13_a_backend_does_not_change_the_page_size_and_is_refused_before_anything_is_built(
    pages64: list[object], monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    from rtk.serve.runtime import start

    monkeypatch.setattr("rtk.model.store.resolve_model", lambda *_, **__: pytest.fail("a model was looked for"))
    chosen = ("--attention", "pages64", "--device", "cpu", "--page-size", str(tokens))
    assert f"cache.page_size = {tokens}  # flag --page-size" in show(*chosen)[1]
    problem = f"attention backend 'pages64' cannot serve cache.page_size = {tokens} (it takes 64); choose torch"
    with pytest.raises(ConfigError) as caught:
        start(config_from({"attention.backend": "pages64", "model.device": "cpu", "cache.page_size": tokens}))
    assert str(caught.value) == problem
    dry = CliRunner().invoke(app, ["serve", "--dry-run", *chosen])
    assert (dry.exit_code, dry.stdout, dry.stderr) == (1, "", f"error: {problem}\n")
    assert pages64 == []


@pytest.mark.parametrize("tokens", [64, None])
def test_g13_the_page_size_is_one_value_everywhere(
    zoo, pages64: list[object], monkeypatch: pytest.MonkeyPatch, tokens: int | None
) -> None:
    from rtk.serve.launch import _server
    from rtk.serve.runtime import start

    model = zoo.folder("llama")
    for place in ("rtk.serve.runtime", "rtk.serve.tokenizer"):
        monkeypatch.setattr(f"{place}.Tokenizer.load", lambda folder: byte_level())
    given = {} if tokens is None else {"cache.page_size": tokens}
    chosen = {"attention.backend": "pages64", "model.device": "cpu", "model.path": str(model)} | given
    sets = [text for key, value in chosen.items() for text in ("--set", f"{key}={value}")]
    assert f"cache.page_size = {tokens or 'null'}  # " in "".join(show(*sets)[1])
    dry = CliRunner().invoke(app, ["serve", "--dry-run", "--pool-tokens", "200", *sets])
    assert "KV pool: 256 tokens in pages of 64\n" in dry.stdout
    assert pages64 == [64]
    runtime = start(config_from({**chosen, "cache.pool_tokens": 200}))
    try:
        server = _server(runtime, SimpleNamespace(getsockname=lambda: ("127.0.0.1", 1)))  # type: ignore[arg-type]
        info = asyncio.run(ask(server.config.app, "/server_info"))
        assert info["config"]["cache"]["page_size"] == tokens
        assert (info["model"]["attention"], info["model"]["page_size"], info["stats"]["pool"]) == ("pages64", 64, 256)
        scheduler = runtime._thread._scheduler
        assert (scheduler._limits.page_size, scheduler._limits.pool_tokens) == (64, 256)
        assert pages64 == [64, 64]  # the dry run's, and the start's
    finally:
        runtime.close()


async def ask(application: object, path: str) -> dict:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://localhost") as client:
        return (await client.get(path)).json()
