"""Rate limits per user and address. In memory: each process of the server counts for itself."""

from dataclasses import dataclass, field

from metier.ids import Clock

_MAX_KEPT = 10_000


@dataclass(slots=True)
class RateLimit:
    """A bucket for every name that holds a minute's worth of requests and fills up steadily."""

    per_minute: int
    clock: Clock
    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Remaining requests, and the time of that count."""

    def take(self, name: str) -> float:
        """0 where the request may continue; else in how many seconds it may."""
        now = self.clock.monotonic()
        left, at = self._buckets.get(name, (float(self.per_minute), now))
        left = min(float(self.per_minute), left + (now - at) * self.per_minute / 60)
        if len(self._buckets) >= _MAX_KEPT and name not in self._buckets:
            self._buckets.clear()  # a flood of addresses: forget them rather than run out of memory
        if left < 1:
            self._buckets[name] = (left, now)
            return (1 - left) * 60 / self.per_minute
        self._buckets[name] = (left - 1, now)
        return 0.0
