import sys
from pathlib import Path

import pytest


def pytest_collection_finish():
    """Tiny models in one thread: several wait for each other in every operation, for long where other work runs."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def zoo(tmp_path_factory):
    """Tiny random models by name, made once for the session."""
    sys.path.append(str(Path(__file__).parent / "model"))
    from tiny_models import Zoo  # brings torch, which most tests do without

    return Zoo(tmp_path_factory.mktemp("zoo"))
