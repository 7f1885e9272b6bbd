import sys
from pathlib import Path

# Tests are imported one by one, so what they share is put where Python finds it.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
