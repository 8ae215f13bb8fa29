import sys
from pathlib import Path

import pytest
from hypothesis import Phase

from rtk.plugin.testing import strategies

collect_ignore = ["from_docs"]  # packages with tests of their own, which run where they are installed

# helpers that live beside the tests of one part
sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "cache")]


@pytest.fixture(autouse=True)
def found_is_enough(monkeypatch):
    """Nobody reads the smallest example of a planted fault."""
    monkeypatch.setattr(strategies, "PHASES", (Phase.generate,))


@pytest.fixture(scope="session")
def workshop(tmp_path_factory):
    """An environment with rtk installed from a wheel, made once for the session."""
    from workshop import Workshop

    return Workshop(tmp_path_factory.mktemp("workshop"))
