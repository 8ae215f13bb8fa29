import sys
from pathlib import Path

# helpers that live beside the tests of this part
sys.path.append(str(Path(__file__).parent))
