"""A tool for scenarios of the crash kit: its effect is a line in the file of effects, and can be looked for there."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from metier.testing.crash_kit import read_effects, record_effect
from metier.testing.crash_scenario import DoubtAnswer, Reach
from metier.tools.base import ToolContext, ToolInfo, ToolResult
from metier.tools.effects import Effect


@dataclass(frozen=True, slots=True)
class RecordedEffect:
    """Counts what it does, unless it only reads; can be killed before and after."""

    name: str
    effect: Effect
    effects: Path
    reach: Reach

    @property
    def info(self) -> ToolInfo:
        return describe_deed(self.name, self.effect)

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        self.reach(f"effect:{self.name}:begun")
        if self.effect != "read":
            record_effect(self.effects, effect=self.effect, name=self.name, key=context.idempotency_key)
        self.reach(f"effect:{self.name}:done")
        return ToolResult(ok=True, output=f"{self.name} {json.dumps(arguments, sort_keys=True)}")


def describe_deed(name: str, effect: Effect) -> ToolInfo:
    """What a model and a policy are told of a tool that takes anything."""
    return ToolInfo(
        id=f"test:{name}",
        name=name,
        description=f"Do {name}.",
        category="custom",
        input_schema={"type": "object"},
        risk="low",
        effect=effect,
    )


def build_settle(effects: Path) -> Callable[[str], DoubtAnswer]:
    """What a user answers who checks whether it happened."""

    def settle(key: str) -> DoubtAnswer:
        return "done" if any(effect["key"] == key for effect in read_effects(effects)) else "retry"

    return settle
