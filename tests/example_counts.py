"""The number of examples per property.

Without METIER_RANDOM_EXAMPLES the examples are the same on every run, so that more of them mostly repeat earlier ones.
A fifth of them covers each kind; a random search uses all of them.
"""

import os

LEAST = 40
ONE_IN = 5


def examples(whole: int) -> int:
    """Return the value for `settings(max_examples=…)`: all in a search, a fifth in an ordinary run."""
    return whole if os.environ.get("METIER_RANDOM_EXAMPLES") else min(whole, max(LEAST, whole // ONE_IN))
