import sys
from pathlib import Path

# helpers that live beside the tests of one part
sys.path.append(str(Path(__file__).parents[1] / "serve"))
