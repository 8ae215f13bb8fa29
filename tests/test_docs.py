"""The pages for readers: their links lead somewhere, and the plugin that docs/plugins.md writes is one."""

import re
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from rtk.plugin import SchedulePolicy
from rtk.plugin.host import load
from rtk.plugin.testing import eviction, suite

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What a heading is called in a link: lower case, dashes for spaces, nothing else but letters and digits."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)]+)\)", prose(page)):
            yield pytest.param(page, link, id=f"{page.name}-{link}")


@pytest.mark.parametrize(("page", "link"), list(links()))
def test_a_link_leads_somewhere(page: Path, link: str):
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    assert target.exists()
    assert not anchor or anchor in anchors(target)


def test_the_plugin_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    names = {"toml": ["pyproject.toml"], "python": ["acme.py", "test_acme.py"]}
    files = {
        name: block
        for language, wanted in names.items()
        for name, block in zip(wanted, re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL), strict=True)
    }
    (tmp_path / "acme.py").write_text(files["acme.py"])
    monkeypatch.syspath_prepend(tmp_path)
    group = tomllib.loads(files["pyproject.toml"])["project"]["entry-points"]["rtk"]
    registry = load(EntryPoint(name, value, "rtk") for name, value in group.items())
    assert registry.failures == ()
    assert [entry.plugin.name for entry in registry.all()] == ["big", "shortest"]

    big, shortest = registry.get("eviction", "big"), registry.get("schedule", "shortest")
    assert eviction.replay(big.build(big.plugin.options(keep_hits=2)), operations=400, sort_anew=True)
    assert isinstance(shortest.build(shortest.plugin.options()), SchedulePolicy)

    tests: dict[str, object] = {}
    exec(files["test_acme.py"], tests)
    tests["test_big"](suite("eviction")[0])
    tests["test_shortest"](suite("schedule")[0])
