import sys
from pathlib import Path

# Tests are imported one by one, so their shared helpers are put where Python finds them.
sys.path.insert(0, str(Path(__file__).parent))
