"""What an eval may spend: a part is set aside for each run before it begins, so that no number of runs exceeds it."""

from dataclasses import dataclass

_LEAST = 1e-6


@dataclass(slots=True)
class Purse:
    """Runs of one process share one. Without a limit it gives everything and counts."""

    limit_usd: float | None
    jobs: int = 1
    spent_usd: float = 0.0
    set_aside_usd: float = 0.0
    is_used_up: bool = False

    def reserve(self, *, remaining: int) -> float | None:
        """What the next of `remaining` runs may cost; None where there is no limit. Check `is_used_up` first."""
        if self.limit_usd is None:
            return None
        available = self.limit_usd - self.spent_usd - self.set_aside_usd
        if available < _LEAST:
            self.is_used_up = True
            return 0.0
        share = available / max(1, min(self.jobs, remaining))
        self.set_aside_usd += share
        return share

    def settle(self, reserved: float | None, *, spent_usd: float) -> None:
        self.set_aside_usd -= reserved or 0.0
        self.spent_usd += spent_usd
