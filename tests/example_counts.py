"""Number of examples for each property.

Without METIER_RANDOM_EXAMPLES the examples are the same on every run, so that more of them mostly repeat what earlier
runs have shown. A fifth of them meets each kind; the search for new ones has them all.
"""

import os

LEAST = 40
ONE_IN = 5


def examples(whole: int) -> int:
    """For `settings(max_examples=…)`: all in a search, a fifth in the ordinary run."""
    return whole if os.environ.get("METIER_RANDOM_EXAMPLES") else min(whole, max(LEAST, whole // ONE_IN))
