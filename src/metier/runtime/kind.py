"""What must be known of a run before its journal is open."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from metier.runtime.agents import AgentInForce


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKind:
    folder: Path
    agent: AgentInForce
    is_dry: bool = False
    pins: Mapping[str, str] = field(default_factory=dict[str, str])
    """What it began with; empty when it has not begun."""
