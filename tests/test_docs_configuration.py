"""The pages on configuration and the example of a deployment: generated parts are fresh, examples are what they say."""

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.main import get_command
from typer.testing import CliRunner

from rtk.config.keys import KeyTable, as_text
from rtk.config.load import load_files
from rtk.config.models import Config
from rtk.config.tree import config_model
from rtk.plugin.host import installed
from rtk_cli.main import app
from rtk_cli.theirs import INSTEAD

ROOT = Path(__file__).parents[1]
DOCS, EXAMPLE = ROOT / "docs", ROOT / "examples" / "deployment"
TEXT = (DOCS / "configuration.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def make_keys() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_keys", DOCS / "make_keys.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_of_keys_is_fresh(make_keys: ModuleType) -> None:
    assert make_keys.PAGE.read_text(encoding="utf-8") == make_keys.page(), "run 'make docs'"


ELEVEN = """
--disable-radix-cache
--page-size
--radix-eviction-policy
--enable-hierarchical-cache
--schedule-policy
--schedule-conservativeness
--chunked-prefill-size
--enable-mixed-chunk
--mem-fraction-static
--disable-overlap-schedule
--grammar-backend
"""


def flag_rows(start: str = "| `--") -> list[list[str]]:
    lines = (DOCS / "flags.md").read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith(start)]


def test_the_flags_of_sglang_are_all_there() -> None:
    assert [row[0] for row in flag_rows()[:11]] == [f"`{flag}`" for flag in ELEVEN.split()]


@pytest.mark.parametrize("row", [row for row in flag_rows() if row[4].startswith("`")], ids=lambda row: row[0])
def test_a_flag_is_mapped_to_a_key_with_its_default(row: list[str]) -> None:
    path, _, value = row[4].strip("`").partition(" = ")
    key = KeyTable(config_model(installed())).by_path[path]
    if not value and path != "model.cache_dir":
        assert re.match(r"`([^`]*)`", row[5])[1] == as_text(key.default)  # type: ignore[index]


def test_the_commands_know_the_flags_of_others_as_the_page_does() -> None:
    ours = {key.path: key.flag or f"--set {key.path}=" for key in KeyTable(config_model(installed()))}
    serve = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    own = {name for option in serve.params for name in option.opts}
    keys: dict[str, set[str]] = {}
    for row in flag_rows("| "):
        for name in re.findall(r"`(--[\w-]+)", row[0] + row[2]):
            keys.setdefault(name.replace("--no-", "--"), set()).update(re.findall(r"^`([\w.]+)", row[4]))
    assert {name.replace("--no-", "--") for name in INSTEAD} == keys.keys() - own
    for name, instead in INSTEAD.items():
        mapped = [ours[key] for key in keys[name.replace("--no-", "--")]]
        assert any(option in instead for option in mapped) if mapped else "--" not in instead, name
        assert not instead.startswith("--") or instead.split()[0].rstrip(",") in own, name


def test_the_examples_of_files_say_the_same(tmp_path: Path) -> None:
    toml, yml = tmp_path / "a.toml", tmp_path / "a.yaml"
    toml.write_text(blocks("toml")[0])
    yml.write_text(blocks("yaml")[0])
    loaded = load_files(installed(), [toml])
    assert loaded.config == load_files(installed(), [yml]).config
    assert loaded.config.eviction.options().model_dump() == {"protect_after_hits": 3}


# --- examples/deployment --------------------------------------------------------------------------------------------


def test_the_example_is_checked() -> None:
    result = CliRunner().invoke(app, ["config", "check", str(EXAMPLE / "rtk.toml")])
    assert (result.exit_code, result.stdout) == (0, f"{EXAMPLE / 'rtk.toml'}: ok\n")
    assert CliRunner().invoke(app, ["config", "migrate", "--check", str(EXAMPLE / "rtk.toml")]).exit_code == 0


def test_the_example_holds_no_secret() -> None:
    config = load_files(installed(), [EXAMPLE / "rtk.toml"]).config
    assert [key.path for key in KeyTable(Config) if key.is_secret and key.value(config) is not None] == []


COMMANDS = [
    command
    for file in sorted(path for path in EXAMPLE.rglob("*") if path.is_file() and path.name != "README.md")
    for line in file.read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
    for command in re.findall(
        r"(?<![\w/.-])(?:/opt/rtk/bin/)?(rtk (?:config \w+|serve)[^&\]]*)", line.replace('", "', " ")
    )
]


def test_every_file_of_the_example_uses_rtk() -> None:
    assert len(COMMANDS) == 9


@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_uses_commands_and_flags_that_there_are(command: str) -> None:
    found, words = get_command(app), shlex.split(command.rstrip('"'))[1:]
    while words and words[0] in getattr(found, "commands", {}):
        found = found.commands[words.pop(0)]  # type: ignore[attr-defined]
    flags = {flag for option in found.params for flag in (*option.opts, *option.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= flags
    assert not hasattr(found, "commands")


def test_the_snippets_of_the_page_are_those_of_the_example() -> None:
    _, job, hook = blocks("yaml")
    steps = yaml.safe_load(job)["jobs"]["config"]["steps"]
    example = yaml.safe_load((EXAMPLE / "ci" / "check.yaml").read_text())["jobs"]["check"]["steps"]
    assert [step["uses"] for step in steps if "uses" in step] == [step["uses"] for step in example if "uses" in step]
    assert steps[3] == example[3]
    assert steps[4] == example[4]
    assert yaml.safe_load(hook) == yaml.safe_load((EXAMPLE / ".pre-commit-config.yaml").read_text())


def test_the_hook_checks_the_files_it_should() -> None:
    (hook,) = yaml.safe_load((EXAMPLE / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    names = ["rtk.toml", "rtk-prod.yaml", "rtk.yml", "rtk.lock.toml", "other.toml", "rtk.service"]
    checked = [name for name in names if re.search(hook["files"], name) and not re.search(hook["exclude"], name)]
    assert checked == ["rtk.toml", "rtk-prod.yaml", "rtk.yml"]


def needed(names: list[str]) -> set[str]:
    """Distributions with all that they require, in lower case."""
    found: set[str] = set()
    while names:
        name = names.pop()
        if canonicalize_name(name) not in found:
            found.add(canonicalize_name(name))
            wanted = map(Requirement, requires(name) or ())
            names += [one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def test_the_packages_that_the_job_installs_are_enough() -> None:
    job = (EXAMPLE / "ci" / "check.yaml").read_text()
    listed = re.search(r"pip install (numpy.*)", job)
    assert listed
    there = needed(listed[1].split()) | {"rtk-inference"}
    homes = packages_distributions()
    away = {module for module, names in homes.items() if not {canonicalize_name(name) for name in names} & there} - {
        "rtk",
        "rtk_cli",
        "rtk_eviction",
        "rtk_schedule",
        "rtk_attention",
    }
    assert {"torch", "transformers", "fastapi"} <= away
    script = f"""
import sys
class Away:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {away!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Away())
sys.argv = ["rtk", "config", "check", {str(EXAMPLE / "rtk.toml")!r}]
from rtk_cli.main import main
main()
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_requirement_of_the_example_is_that_of_this_rtk() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = tomllib.loads((EXAMPLE / "rtk.toml").read_text())["plugins"]["require"]
    assert list(required) == [pyproject["name"]]
    major, minor, _ = pyproject["version"].split(".")
    assert required[pyproject["name"]] == f">={major}.{minor},<{major}.{int(minor) + 1}"


def test_the_server_that_others_reach_is_configured_as_it_is_shown(tmp_path: Path) -> None:
    text = (DOCS / "security.md").read_text(encoding="utf-8")
    files = []
    for i, block in enumerate(re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)):
        files.append(tmp_path / f"{i}.toml")
        files[-1].write_text(block, encoding="utf-8")
    serve = load_files(installed(), files).config.serve
    assert isinstance(serve.api_keys, dict)
    assert serve.api_keys.keys() == {"acme", "beta"}
    assert serve.tenants.limits == {"acme": {"tokens_per_minute": 1_000_000}}
    paths = {key.path for key in KeyTable(Config)}
    assert set(re.findall(r"`((?:serve|schedule)\.\w+(?:\.\w+)?)`", text)) - {"serve.tenants.limits"} <= paths | {
        "schedule.vtc.weights"
    }
