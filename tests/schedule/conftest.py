import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

import pytest


@pytest.fixture(autouse=True)
def tell_of_short_runs_too(monkeypatch):
    """Tests' prompts are short; what plans tell of shared slots is checked by the executor, wherever there is one."""
    monkeypatch.setattr("rtk.schedule.sharing.WORTH", 1)
