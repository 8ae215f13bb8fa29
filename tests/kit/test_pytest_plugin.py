"""`pytest --rtk-plugin NAME`, where rtk is installed."""

import re

TESTS = """
def test_of_somebody_else():
    import sys
    assert {"numpy", "pydantic", "rtk.plugin", "torch"}.isdisjoint(sys.modules)
"""


def test_the_source_tree_is_not_on_the_path(workshop):
    assert workshop.run("python", "-c", "import rtk; print(rtk.__file__)").startswith(str(workshop.folder / "venv"))


def test_a_run_without_the_option_is_left_alone(workshop, tmp_path):
    (tmp_path / "test_x.py").write_text(TESTS)
    said = workshop.pytest("--strict-config", "--strict-markers", "-W", "error", cwd=tmp_path)
    assert "1 passed" in said
    assert "rtk-inference-" in said.partition("plugins: ")[2]


def test_the_suite_runs_beside_other_tests(workshop, tmp_path):
    (tmp_path / "test_x.py").write_text("def test_own(): pass\n")
    said = workshop.pytest("-v", "--rtk-plugin", "slru", "-W", "error", cwd=tmp_path)
    names = re.findall(r"^(\S.*) PASSED", said, re.MULTILINE)
    assert names[0] == "test_x.py::test_own"
    assert "rtk-plugin[eviction:slru]::keys are stable" in names
    assert f"{len(names)} passed" in said
    assert "collected 9 items" in said


def test_a_part_of_a_suite_can_be_chosen(workshop, tmp_path):
    """Who is named twice, as on the line and in the options of a package, is tested once."""
    two = ["--rtk-plugin", "slru", "--rtk-plugin", "schedule:priority", "--rtk-plugin", "eviction:slru"]
    assert "2 passed" in workshop.pytest(*two, "-k", "stable or required", cwd=tmp_path)


def test_what_a_plugin_writes_by_default_is_gone(workshop, tmp_path):
    workshop.run("rtk", "plugins", "new", "observer", "notes", cwd=tmp_path)
    package = tmp_path / "rtk-observer-notes"
    init = package / "rtk_observer_notes" / "__init__.py"
    assert 'Path("requests.txt")' in init.read_text()
    workshop.install(package)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "7 passed" in workshop.pytest("--rtk-plugin", "notes", cwd=empty)
    assert {path.name for path in empty.iterdir()} <= {".hypothesis"}


def test_a_plugin_that_is_not_there_ends_the_run(workshop):
    said = workshop.pytest("--rtk-plugin", "slro", code=4)
    assert said == "ERROR: --rtk-plugin: unknown plugin 'slro'; did you mean 'slru'?\n\n"


def test_without_assertions_there_is_no_contract(workshop):
    said = workshop.run("python", "-O", "-m", "pytest", "--rtk-plugin", "lru", code=4)
    assert "python -O leaves those out" in said
