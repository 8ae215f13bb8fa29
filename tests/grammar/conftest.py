import sys
from pathlib import Path

# compiler processes find `grammar_toys` there; and the server of the tests beside
sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "serve")]
