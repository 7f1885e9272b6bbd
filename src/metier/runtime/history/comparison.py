"""Where two runs part: the first decision, step or ending that is not the same. Ids, times and hashes do not count."""

from collections.abc import Sequence
from typing import cast

from pydantic import JsonValue

from metier.dataclass import dataclass
from metier.engine import entries as e
from metier.engine.replaying.recording import Difference, find_differences

_TOLD = {
    "run_started": ("task", "mode", "agent", "provider", "model", "profile", "extra_context", "pins"),
    "skills_ranked": ("candidates",),
    "decision_made": ("decision", "rejected"),
    "decode_failed": ("reason", "repair"),
    "step_started": ("step_id", "action", "effect"),
    "step_finished": ("step_id", "status", "text", "exit_code", "error_type"),
    "step_retried": ("step_id", "reason"),
    "step_in_doubt": ("step_id",),
    "doubt_resolved": ("step_id", "answer"),
    "approval_decided": ("step_id", "decision", "edited_arguments"),
    "input_given": ("values",),
    "handed_off": ("from_skill", "to_skill", "fallback"),
    "run_finished": ("result",),
    "run_failed": ("reason", "message", "status"),
}
"""The entries that say what a run did, and their fields that do; the others follow from these or only note a time."""
_CALL_ID = "call_id"


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that a run did."""

    number: int
    kind: str
    facts: JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    same: int
    """So many moments are the same in both."""
    turn: int
    """The turn in which the runs part; 0 before the first."""
    left: Moment | None
    right: Moment | None
    differences: tuple[Difference, ...] = ()
    beginnings: tuple[Difference, ...] = ()
    """What differed from the start: task, model, definitions."""

    @property
    def is_equal(self) -> bool:
        return self.left is None and self.right is None


def compare_runs(left: Sequence[e.Entry], right: Sequence[e.Entry]) -> Comparison:
    """Where the two part. How they began is told apart: another model is a reason, not a decision."""
    one, other = _find_moments(left), _find_moments(right)
    beginnings = tuple(find_differences(one[0].facts, other[0].facts)) if one and other else ()
    same, turn = 0, 0
    for index in range(1, max(len(one), len(other))):
        here = one[index] if index < len(one) else None
        there = other[index] if index < len(other) else None
        if here is None or there is None or here.kind != there.kind or here.facts != there.facts:
            is_same_kind = here is not None and there is not None and here.kind == there.kind
            found = tuple(find_differences(here.facts, there.facts)) if is_same_kind and here and there else ()
            return Comparison(same=same, turn=turn, left=here, right=there, differences=found, beginnings=beginnings)
        same += 1
        turn += here.kind == "decision_made"
    return Comparison(same=same, turn=turn, left=None, right=None, beginnings=beginnings)


def _find_moments(entries: Sequence[e.Entry]) -> list[Moment]:
    return [
        Moment(number, entry.kind, _without_ids(_facts(entry)))
        for number, entry in enumerate(entries, start=1)
        if entry.kind in _TOLD
    ]


def _facts(entry: e.Entry) -> JsonValue:
    return cast("JsonValue", entry.model_dump(mode="json", include=set(_TOLD[entry.kind])))  # JSON mode gives JSON


def _without_ids(value: JsonValue) -> JsonValue:
    """Vendors number calls as they like."""
    match value:
        case dict():
            return {key: _without_ids(item) for key, item in value.items() if key != _CALL_ID}
        case list():
            return [_without_ids(item) for item in value]
        case _:
            return value
