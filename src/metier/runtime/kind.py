"""What must be known of a run before its journal is open."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from metier.runtime.agents import AgentInForce
from metier.runtime.instructions import Said


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKind:
    folder: Path
    agent: AgentInForce
    said: Said | None = None
    """What a run that begins is given beside its task."""
    is_dry: bool = False
    pins: Mapping[str, str] = field(default_factory=dict[str, str])
    """What it began with; empty when it has not begun."""
