"""When a process looks for what killed programs left behind: at its first run, then at most once a minute."""

import sys
import time

from metier.dataclass import dataclass

YOUNG_SECONDS = 60
"""A scratch folder younger than this is left alone, so there is no use in looking more often."""


@dataclass
class SweepTimes:
    last: float = float("-inf")

    def take(self) -> bool:
        """Is it time to look? Then the time of the next look is counted from here."""
        now = time.monotonic()
        is_due = sys.platform != "win32" and now - self.last >= YOUNG_SECONDS
        self.last = now if is_due else self.last
        return is_due
