"""A tool for scenarios of the crash kit. Its effect is a line in the effects file."""

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
    """Records each call that is not read-only, with points before and after it."""

    name: str
    effect: Effect
    effects: Path
    reach: Reach

    @property
    def info(self) -> ToolInfo:
        return describe_effect(self.name, self.effect)

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        self.reach(f"effect:{self.name}:begun")
        if self.effect != "read":
            record_effect(self.effects, effect=self.effect, name=self.name, key=context.idempotency_key)
        # In the journal, a kill here looks like a kill before the effect: the step has started and has no result.
        self.reach(f"effect:{self.name}:done")
        return ToolResult(ok=True, output=f"{self.name} {json.dumps(arguments, sort_keys=True)}")


def describe_effect(name: str, effect: Effect) -> ToolInfo:
    """Return the description of a tool that accepts any object."""
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
    """Build a `Scenario.settle` that checks if the effect happened."""

    def settle(key: str) -> DoubtAnswer:
        return "done" if any(effect["key"] == key for effect in read_effects(effects)) else "retry"

    return settle
