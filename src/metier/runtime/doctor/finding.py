"""One line of `agent doctor`."""

from typing import Literal

from metier.dataclass import dataclass

type State = Literal["ok", "off", "problem"]
"""Works; not there and not needed as things are set; needed and does not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    area: str
    name: str
    state: State
    detail: str
    hint: str = ""
