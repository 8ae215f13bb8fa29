import sys
from pathlib import Path

# the helpers beside the tests; pytest does not put a test's folder on the path in importlib mode
sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "schedule"))
