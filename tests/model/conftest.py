import sys
from pathlib import Path

import pytest

# the helpers beside the tests; pytest does not put a test's folder on the path in importlib mode
sys.path.append(str(Path(__file__).parent))


@pytest.fixture(scope="session")
def zoo(tmp_path_factory):
    """Tiny random models by name, made once for the session."""
    from tiny_models import Zoo  # brings torch, which the other tests here do without

    return Zoo(tmp_path_factory.mktemp("zoo"))
