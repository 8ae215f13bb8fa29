import sys
from pathlib import Path

# helpers that live beside the tests of one part
sys.path.append(str(Path(__file__).parent))

from small_tree import make_tree  # noqa: F401 - a fixture
