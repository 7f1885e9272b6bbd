"""One line of the benchmark table."""

from typing import NamedTuple


class Row(NamedTuple):
    name: str
    value: str
    target: str
    holds: bool
