"""How the processes of one worker know that it is over: a pipe whose only writing end is held by the first of them.

When that process closes it, or dies in whatever way, all others read the end of it.
"""

import os
import select
from dataclasses import dataclass

import anyio


@dataclass(slots=True)
class ParentWatch:
    reading: int
    writing: int

    @property
    def is_pulled(self) -> bool:
        return bool(select.select([self.reading], [], [], 0)[0])

    def keep_reading(self) -> None:
        """In every process but the first."""
        os.close(self.writing)
        self.writing = -1

    def pull(self) -> None:
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1

    async def wait(self) -> None:
        await anyio.wait_readable(self.reading)


def open_leash() -> ParentWatch:
    reading, writing = os.pipe()
    return ParentWatch(reading, writing)
