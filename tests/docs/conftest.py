"""Lets the tests of pages share how a page is followed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
