"""One row of the table that `bench/run` prints."""

from typing import NamedTuple


class Row(NamedTuple):
    name: str
    value: str
    target: str
    holds: bool
