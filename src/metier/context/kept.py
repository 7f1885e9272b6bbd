"""Keep what was built last, for the next turn that would build it of the same parts."""

from collections.abc import Callable


class Kept[Built]:
    """Belongs to one run. Most of a request is as it was a turn before; comparing its parts looks at identity first."""

    def __init__(self) -> None:
        self._parts: tuple[object, ...] = ()
        self._built: Built | None = None

    def get(self, parts: tuple[object, ...], build: Callable[[], Built]) -> Built:
        """What `build` makes of these parts; called only where they are not those of the last time."""
        if self._built is None or parts != self._parts:
            self._parts, self._built = parts, build()
        return self._built
