import sys
from pathlib import Path

# helpers that live beside the tests of one part
for part in ("serve", "cache", "plugin", "grammar"):
    sys.path.append(str(Path(__file__).parents[1] / part))

from real_distributions import install  # noqa: E402, F401 - a fixture
from small_tree import make_tree  # noqa: E402, F401 - a fixture
