"""The frame of the `rtk` command: exit codes, messages, help, and what may not be imported for them."""

import inspect
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from rtk.config.keys import walk
from rtk.config.models import Config
from rtk.errors import ModelError
from rtk_cli import main as cli
from rtk_cli.options import with_config

COMMANDS = [
    *([], ["serve"], ["generate"], ["chat"], ["plugins"], ["version"], ["model"], ["config"], ["config", "show"]),
    *(
        ["cache"],
        ["cache", "pin"],
        *(["config", name] for name in ("check", "init", "schema", "diff", "lock", "migrate")),
    ),
]
HEAVY = "torch", "transformers", "fastapi"


def rtk(*args: str, script: str = "") -> subprocess.CompletedProcess[str]:
    """The command in a process of its own; `script` runs before it."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RTK_")}
    code = f"{script}\nfrom rtk_cli.main import main\nmain()"
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, env=environ, input="", capture_output=True, text=True, check=False)


def imported_by(*args: str) -> set[str]:
    """The top-level modules in memory when `rtk args` ends, which must end well."""
    report = "import atexit, sys; atexit.register(lambda: sys.stderr.write('\\n'.join(sys.modules)))"
    result = rtk(*args, script=report)
    assert result.returncode == 0
    return {name.partition(".")[0] for name in result.stderr.splitlines()}


def run(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, args)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """The root command's frame around commands that fail."""
    app = typer.Typer(cls=cli.Rtk, pretty_exceptions_enable=False, rich_markup_mode=None)

    @app.command()
    def expected() -> None:
        raise ModelError("no model 'x'; see 'rtk model list'")

    @app.command()
    def interrupted() -> None:
        raise KeyboardInterrupt

    @app.command()
    def bug() -> None:
        raise ZeroDivisionError

    @app.command()
    def lacking(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    return app


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    assert imported_by(*command, "--help").isdisjoint({*HEAVY, "numpy"})


@pytest.mark.parametrize(
    "command",
    [
        *(["plugins"], ["plugins", "list"], ["plugins", "show", "attention:torch"], ["version"]),
        *(["config", "show"], ["config", "show", "--sources"], ["config", "schema"]),
    ],
    ids=" ".join,
)
def test_looking_around_imports_nothing_heavy(command: list[str]) -> None:
    assert imported_by(*command).isdisjoint(HEAVY)


@pytest.mark.parametrize(
    ("name", "text"), [("a.toml", "[schedule]\npolicy = 'lpm'\n"), ("a.yml", "model: {path: x}\n")]
)
def test_checking_a_file_needs_no_torch(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert imported_by("config", "check", str(file)).isdisjoint({*HEAVY, "huggingface_hub"})


def test_an_expected_failure_is_one_line_and_code_1(failing: typer.Typer) -> None:
    result = CliRunner().invoke(failing, ["expected"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: no model 'x'; see 'rtk model list'\n"


def test_a_package_that_rtk_needs_and_is_not_there_is_one_line(failing: typer.Typer) -> None:
    result = CliRunner().invoke(failing, ["lacking", "torch"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: torch is not installed, and this command needs it; pip install 'rtk-inference'\n"
    for bug in ("torch.no_such_module", "pytest", "nobody_s"):
        assert isinstance(CliRunner().invoke(failing, ["lacking", bug]).exception, ModuleNotFoundError)


def test_what_a_message_quotes_cannot_pass_for_another() -> None:
    code, out, err = run("config", "show", "--config", "a\nerror: b\udcff")
    assert (code, out) == (1, "")
    assert err == r"error: a\nerror: b\udcff: a configuration file's name ends in .toml, .yaml, .yml" + "\n"


def test_a_log_message_is_one_line_and_a_traceback_is_not() -> None:
    script = (
        "import logging, rtk_cli.main as cli\n"
        "def app():\n"
        "    logging.warning('POST %s failed', '/a\\nERROR: b')\n"
        "    try: 1 / 0\n"
        "    except ZeroDivisionError: logging.exception('bug')\n"
        "cli.app = app"
    )
    lines = rtk(script=script).stderr.splitlines()
    assert lines[0] == r"WARNING: POST /a\nERROR: b failed"
    assert lines[1:3] == ["ERROR: bug", "Traceback (most recent call last):"]


def test_ctrl_c_is_quiet_and_code_130(failing: typer.Typer) -> None:
    result = CliRunner().invoke(failing, ["interrupted"])
    assert (result.exit_code, result.output) == (130, "")


def test_a_bug_keeps_its_traceback(failing: typer.Typer) -> None:
    assert isinstance(CliRunner().invoke(failing, ["bug"]).exception, ZeroDivisionError)
    result = rtk("version", script="import platform; platform.python_version = lambda: 1 / 0")
    assert result.returncode == 1
    assert result.stderr.startswith("Traceback (most recent call last):")
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["no-such-command"], "no-such-command"),
        (["serve", "--zzzz"], "--zzzz"),
        (["serve", "--page-size"], "--page-size"),
        (["generate"], "prompt"),
        (["generate", "hello", "--max-tokens", "many"], "--max-tokens"),
        (["generate", "hello", "--port", "1"], "--port"),
    ],
)
def test_a_usage_error_is_code_2(args: list[str], message: str) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert message.lower() in err.lower()


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["serve", "--max-num-seqs", "8"], "--max-num-seqs; in rtk it is --max-running"),
        (["serve", "--max-model-len=4096"], "--max-model-len; in rtk it is --context-length"),
        (["generate", "hello", "--enforce-eager"], "--enforce-eager; in rtk it is --cuda-graphs false"),
        (["config", "show", "--served-model-name", "x"], "--served-model-name; in rtk it is --served-name"),
        (["serve", "--random-seed", "1"], "--random-seed; rtk has none: each request brings its seed"),
        (
            ["serve", "--enable-prefix-caching"],
            "--enable-prefix-caching; rtk has none: prefixes are cached unless there is --disable-cache",
        ),
        (["attention", "--max-num-seqs", "8"], "--max-num-seqs"),  # it has no --max-running either
        (["serve", "--zzzz"], "--zzzz"),
    ],
    ids=" ".join,
)
def test_an_option_of_another_engine_is_refused_with_that_of_rtk(args: list[str], told: str) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == f"Error: No such option: {told}"


@pytest.mark.parametrize("command", ["serve", "chat", "attention"])
def test_a_model_without_its_option_is_refused_with_it(command: str) -> None:
    code, out, err = run(command, "org/model")
    assert (code, out) == (2, "")
    told = "Got unexpected extra argument(s) (org/model); name the model by --model org/model"
    assert err.splitlines()[-1] == f"Error: {told}"


def test_the_version() -> None:
    code, out, _ = run("--version")
    assert code == 0
    assert out.startswith("rtk 0.")


def test_versions_of_everything_that_matters() -> None:
    code, out, _ = run("version")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["rtk", "python", "torch", "transformers"]


def test_what_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rtk_cli.version.LIBRARIES", ("no-such-distribution",))
    assert run("version")[1].splitlines()[-1] == "no-such-distribution not installed"


@pytest.mark.parametrize("command", COMMANDS[1:], ids=" ".join)
def test_a_command_has_every_flag_once(command: list[str]) -> None:
    found = get_command(cli.app)
    for name in command:
        found = found.commands[name]  # type: ignore[attr-defined]
    flags = Counter(flag for option in found.params for flag in (*option.opts, *option.secondary_opts))
    assert [flag for flag, count in flags.items() if count > 1] == []


def test_help_shows_every_flag_with_its_key_and_default() -> None:
    text = " ".join(run("serve", "--help")[1].split())
    for key in walk(Config):
        assert str(key.flag) in text
        assert f"({key.path} = " in text
    assert "--disable-cache / --no-disable-cache" in text
    assert "(serve.port = 8000)" in text


def test_a_switch_can_be_turned_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTK_CACHE__DISABLE", "true")
    assert "cache.disable = true" in run("config", "show")[1]
    assert "cache.disable = false" in run("config", "show", "--no-disable-cache")[1]


def test_a_command_keeps_its_own_parameters() -> None:
    @with_config(lambda key: key.section == "cache")
    def command(loaded: object, prompt: str) -> None:
        """Do something."""

    parameters = inspect.signature(command).parameters
    assert next(iter(parameters)) == "prompt"
    assert "loaded" not in parameters
    assert "cache__page_size" in parameters
    assert "serve__port" not in parameters
    assert command.__doc__ == "Do something."


@pytest.mark.parametrize("command", [["serve"], ["generate", "hello"], ["config", "show"]], ids=" ".join)
def test_a_bad_value_is_an_expected_failure(command: list[str]) -> None:
    code, _, err = run(*command, "--page-size", "0")
    assert code == 1
    assert err == "error: cache.page_size = '0' (flag --page-size): must be an integer from 1 to 2147483647, or null\n"


def test_serve_hands_over_the_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served = []
    monkeypatch.setitem(
        sys.modules, "rtk.serve.launch", type("launch", (), {"serve": lambda loaded, fetching: served.append(loaded)})
    )
    assert run("serve", "--port", "0", "--set", "eviction.slru.protect-after-hits=4", "--eviction", "slru")[0] == 0
    (loaded,) = served
    assert loaded.config.serve.port == 0
    assert loaded.config.eviction.options().protect_after_hits == 4


def test_generate_prints_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Engine:
        def __init__(self, config: Config, *, fetching: object) -> None:
            calls.append(config.cache.page_size)

        def __enter__(self) -> "Engine":
            return self

        def __exit__(self, *error: object) -> None:
            calls.append("closed")

        def stream(self, prompt: str, params: dict, *, chat: bool | None) -> list:
            calls.append((prompt, params, chat))
            return [type("Chunk", (), {"text": text, "verified": verified}) for text, verified in chunks]

    chunks: list[tuple[str, bool | None]] = [("Hel", None), ("lo", None)]
    monkeypatch.setitem(sys.modules, "rtk.engine", type("engine", (), {"Engine": Engine}))
    code, out, _ = run("generate", "say hello", "--page-size", "4", "--max-tokens", "8", "--stop", "a", "--stop", "b")
    assert (code, out) == (0, "Hello\n")
    expected = {"max_new_tokens": 8, "temperature": 0.0, "top_p": 1.0, "top_k": -1, "seed": None, "stop": ["a", "b"]}
    assert calls == [4, ("say hello", expected, None), "closed"]
    for verified, warned in (
        (True, ""),
        (False, "warning: the answer does not have the form that was asked for, or was cut"),
    ):
        chunks[1] = ("lo", verified)
        code, out, err = run("generate", "say hello", "--grammar-verify")
        assert (code, out, err[: len(warned) or None]) == (0, "Hello\n", warned)


def test_generate_gives_pipes_what_the_model_wrote_and_terminals_what_cannot_steer_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Engine:
        def __init__(self, config: Config, *, fetching: object) -> None: ...

        def __enter__(self) -> "Engine":
            return self

        def __exit__(self, *error: object) -> None: ...

        def stream(self, prompt: str, params: dict, *, chat: bool | None) -> list:
            return [type("Chunk", (), {"text": "a\x07\tb\n", "verified": None})]

    monkeypatch.setitem(sys.modules, "rtk.engine", type("engine", (), {"Engine": Engine}))
    assert run("generate", "x")[1] == "a\x07\tb\n\n"
    monkeypatch.setattr("rtk_cli.generate.on_terminal", lambda: True)
    assert run("generate", "x")[1] == "a\tb\n\n"


@pytest.mark.parametrize(
    ("terminal", "texts", "out"),
    [
        (True, ["an answer", " and", ""], "an answer and\n"),
        (True, ["an answer\n"], "an answer\n"),
        (True, [], ""),
        (False, ["an answer and"], "an answer and"),
    ],
)
def test_generate_ends_an_open_line_before_it_tells_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, texts: list[str], out: str
) -> None:
    class Engine:
        def __init__(self, config: Config, *, fetching: object) -> None: ...

        def __enter__(self) -> "Engine":
            return self

        def __exit__(self, *error: object) -> None: ...

        def stream(self, prompt: str, params: dict, *, chat: bool | None) -> Iterator:
            yield from (type("Chunk", (), {"text": text, "verified": None}) for text in texts)
            raise ModelError("gone")

    monkeypatch.setitem(sys.modules, "rtk.engine", type("engine", (), {"Engine": Engine}))
    monkeypatch.setattr("rtk_cli.generate.on_terminal", lambda: terminal)
    assert run("generate", "x") == (1, out, "error: gone\n")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list:
    """What `rtk generate` asks of its engine: parameters, and how to wrap the prompt."""
    told: list = []

    class Engine:
        def __init__(self, config: Config, *, fetching: object) -> None: ...

        def __enter__(self) -> "Engine":
            return self

        def __exit__(self, *error: object) -> None: ...

        def stream(self, prompt: str, params: dict, *, chat: bool | None) -> list:
            told.append((params, chat))
            return []

    monkeypatch.setitem(sys.modules, "rtk.engine", type("engine", (), {"Engine": Engine}))
    return told


@pytest.mark.parametrize(("flag", "chat"), [("--chat", True), ("--raw", False)])
def test_generate_can_be_told_how_to_wrap(told: list, flag: str, chat: bool) -> None:
    assert run("generate", "x", flag)[0] == 0
    assert told[0][1] is chat


def test_generate_can_be_told_what_the_answer_must_look_like(told: list, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "null"}')
    (tmp_path / "grammar").write_text('root ::= "a"')
    for flags, wanted in (
        (("--json-schema", str(tmp_path / "schema.json")), {"json_schema": '{"type": "null"}'}),
        (("--ebnf", str(tmp_path / "grammar")), {"ebnf": 'root ::= "a"'}),
        (("--regex", "a+"), {"regex": "a+"}),
        (("--choice", "a", "--choice", "b"), {"choice": ["a", "b"]}),
    ):
        assert run("generate", "x", *flags)[0] == 0
        params, _ = told.pop()
        assert wanted.items() <= params.items()
        assert len({"json_schema", "ebnf", "regex", "choice"} & params.keys()) == 1
    code, _, err = run("generate", "x", "--ebnf", str(tmp_path / "none"))
    assert (code, err.startswith(f"error: {tmp_path / 'none'} cannot be read: FileNotFoundError")) == (1, True)
