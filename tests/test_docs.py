"""The pages for readers: links lead somewhere, what is generated is fresh, and policies that are shown are such."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

import rtk.plugin
from rtk.plugin import Options
from rtk.plugin.info import KINDS
from rtk.plugin.registry import CONTRACTS
from rtk.plugin.testing import Subject, suite

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


def generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/plugins/generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", sorted((ROOT / "docs/plugins").glob("*.md")), ids=lambda page: page.name)
def test_generated_parts_are_fresh(page: Path):
    """Where this fails, run docs/plugins/generate.py; for the list of names, docs/plugins/names.md has a rule first."""
    text = page.read_text(encoding="utf-8")
    assert generator().filled(text) == text


def test_a_promised_name_does_not_go_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = (ROOT / "docs/plugins/names.md").read_text(encoding="utf-8")
    old = page.replace("rtk.plugin.API_VERSION\n", "rtk.plugin.API_VERSION\nrtk.plugin.Gone\n")
    (tmp_path / "names.md").write_text(old)
    module = generator()
    monkeypatch.setattr(module, "HERE", tmp_path)
    with pytest.raises(SystemExit, match=r"promised and gone: rtk\.plugin\.Gone; see 'For"):
        module.main([])
    assert (tmp_path / "names.md").read_text() == old
    module.main(["--let-names-go"])
    assert (tmp_path / "names.md").read_text(encoding="utf-8") == page


def test_every_generated_part_stands_somewhere():
    parts = [
        part for page in PAGES for part in re.findall(r"<!-- generated: (.+) -->", page.read_text(encoding="utf-8"))
    ]
    assert sorted(parts) == sorted(generator().PARTS)


def test_what_a_plugin_needs_can_be_imported_from_one_module():
    assert {contract.__name__ for contract in CONTRACTS.values()} <= set(rtk.plugin.__all__)


def test_there_is_a_page_for_every_kind():
    assert {kind for kind in KINDS if (ROOT / f"docs/plugins/{kind}.md").exists()} == set(KINDS)


@pytest.mark.parametrize(("kind", "name"), [("eviction", "Policy"), ("schedule", "Policy"), ("observer", "Watcher")])
def test_the_plugin_of_a_page_is_one(kind: str, name: str):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / f"docs/plugins/{kind}.md").read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {"__name__": __name__}
    exec(block, names)
    requires = frozenset({"prefix_match"}) if kind == "schedule" else frozenset()
    for check in suite(kind):
        if check.quick:
            check(Subject(lambda: names[name](Options()), requires))
