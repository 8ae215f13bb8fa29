import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # compiler processes find `grammar_toys` there
