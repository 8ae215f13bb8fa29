import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from real_distributions import install  # noqa: F401 - a fixture
