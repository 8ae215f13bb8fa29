"""docs/plugins/tutorial.md, followed to the letter where rtk is a wheel; serving is the one step that is left out."""

import re

from workshop import ROOT, passed

PAGE = (ROOT / "docs/plugins/tutorial.md").read_text(encoding="utf-8")


def test_the_tutorial_leads_to_a_policy(workshop, tmp_path):
    new = re.search(r"^rtk (plugins new .*)$", PAGE, re.MULTILINE)
    workshop.run("rtk", *new[1].split(), cwd=tmp_path)
    (package,) = tmp_path.iterdir()
    assert f"cd {package.name}\n" in PAGE
    assert re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1] in (package / "pyproject.toml").read_text()

    blocks = re.findall(r"^`([\w/]+\.py)` [^`]*?:\n\n```python\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == PAGE.count("```python") == 3
    for path, text in blocks:
        assert (package / path).exists()
        (package / path).write_text(text)
    workshop.install(package)
    assert "rtk-plugin" in workshop.pytest("-v", "-W", "error", cwd=package)

    serve = re.search(r"^rtk serve (.*)$", PAGE, re.MULTILINE)
    shown = workshop.run("rtk", "config", "show", *serve[1].split()).splitlines()
    assert {"eviction.policy = big", "eviction.big.keep_hits = 2"} <= set(shown)
    assert passed(workshop.pytest("-k", "never_reused", cwd=package)) == 1

    policy = package / "rtk_eviction_big" / "policy.py"
    policy.write_text(policy.read_text().replace('{"hits", "size"}', '{"hits"}'))
    workshop.install(package)
    said = workshop.pytest("--deselect", "rtk-plugin[eviction:big]::the heap equals a full sort", cwd=package, code=1)
    assert "key() reads 'size', which is not in `facts`" in said
    assert re.search(r"FAILED .*rtk-plugin\[eviction:big\]::facts are declared", said)
    assert "in facts_are_declared" in said and "/hypothesis/" not in said and "/_pytest/" not in said
    said = workshop.pytest("-k", "facts", "--full-trace", cwd=package, code=1)
    assert "/_pytest/" in said
