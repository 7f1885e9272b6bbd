"""Lets the tests of this folder share the table of problems."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
