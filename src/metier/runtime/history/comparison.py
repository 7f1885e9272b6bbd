"""Comparisons of runs: the first difference between two of them, and past calls under other rules."""

from collections.abc import Callable, Sequence
from functools import cache

from msgspec import Struct
from pydantic import JsonValue

from metier.approval.judge import RulePolicy
from metier.definitions.names import Profile, fold_id
from metier.engine.entries.entry import Entry
from metier.engine.entries.model import ModelCallStarted
from metier.engine.replay.recording import Difference, list_differences
from metier.runtime.host import Host
from metier.runtime.present_policy import Change, backtest, build_present_policy
from metier.runtime.runs import Runtime
from metier.runtime.workspace.lookup import list_definitions
from metier.values import dump_value

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
    "user_message_added": ("text",),
    "handed_off": ("from_skill", "to_skill", "fallback"),
    "run_finished": ("result",),
    "run_failed": ("reason", "message", "status"),
}
"""Entries that describe actions of a run, with their relevant fields. The others follow from these."""
_CALL_ID = "call_id"


class Moment(Struct, frozen=True):
    """One action of a run."""

    number: int
    kind: str
    facts: JsonValue
    turn: int = 0
    """Turn of the action; 0 before the first model request."""


class Comparison(Struct, frozen=True, kw_only=True):
    same: int
    """Number of equal actions before the first difference."""
    turn: int
    """Turn of the first difference; 0 before the first turn."""
    left: Moment | None
    right: Moment | None
    differences: tuple[Difference, ...] = ()
    beginnings: tuple[Difference, ...] = ()
    """Differences at the start: task, model, definitions."""

    @property
    def is_equal(self) -> bool:
        return self.left is None and self.right is None


def compare_runs(left: Sequence[Entry], right: Sequence[Entry]) -> Comparison:
    """Compare two runs. Differences of their starts are reported separately, because they are causes, not actions."""
    one, other = _list_moments(left), _list_moments(right)
    beginnings = tuple(list_differences(one[0].facts, other[0].facts)) if one and other else ()
    same, turn = 0, 0
    # The first ones are the starts, which are compared above.
    for index in range(1, max(len(one), len(other))):
        here = one[index] if index < len(one) else None
        there = other[index] if index < len(other) else None
        if here is None or there is None or here.kind != there.kind or here.facts != there.facts:
            is_same_kind = here is not None and there is not None and here.kind == there.kind
            found = tuple(list_differences(here.facts, there.facts)) if is_same_kind and here and there else ()
            parted = here or there
            turn = parted.turn if parted is not None else turn
            return Comparison(same=same, turn=turn, left=here, right=there, differences=found, beginnings=beginnings)
        same += 1
        turn = here.turn
    return Comparison(same=same, turn=turn, left=None, right=None, beginnings=beginnings)


def _list_moments(entries: Sequence[Entry]) -> list[Moment]:
    moments: list[Moment] = []
    turn = 0
    for number, entry in enumerate(entries, start=1):
        turn = entry.turn if isinstance(entry, ModelCallStarted) else turn
        if entry.kind in _TOLD:
            moments.append(Moment(number, entry.kind, _without_ids(_facts(entry)), turn))
    return moments


def _facts(entry: Entry) -> JsonValue:
    return {name: dump_value(getattr(entry, name)) for name in _TOLD[entry.kind]}


def _without_ids(value: JsonValue) -> JsonValue:
    """Remove call IDs, which differ between replies of providers."""
    match value:
        case dict():
            return {key: _without_ids(item) for key, item in value.items() if key != _CALL_ID}
        case list():
            return [_without_ids(item) for item in value]
        case _:
            return value


class PastRuns(Struct, frozen=True, kw_only=True):
    runs: int
    calls: int
    """Number of evaluated calls."""
    changes: tuple[Change, ...]
    """Calls with a different decision."""


async def backtest_past_runs(runtime: Runtime, *, runs: int, host: bytes | None = None) -> PastRuns:
    """Evaluate the calls of past runs again, newest first, with the draft `host`. Raises `ConfigError`."""
    build = _open_by_agent(runtime.host, host)
    build("", "guarded")  # reject an invalid draft even if there are no past runs
    rows = await runtime.store.list_runs(limit=runs)
    found = [backtest(row.run_id, await runtime.read_entries(row.run_id), build) for row in rows]
    return PastRuns(
        runs=len(rows),
        calls=sum(each.calls for each in found),
        changes=tuple(change for each in found for change in each.changes),
    )


def _open_by_agent(host: Host, policy_file: bytes | None) -> Callable[[str, Profile], RulePolicy]:
    """Build one policy for each agent and profile of past runs. A missing agent counts as the built-in one."""
    there = list_definitions(host.workspace, "agent")

    # Building a policy reads files, and many runs share a few agents and profiles.
    @cache
    def build(agent: str, profile: Profile) -> RulePolicy:
        return build_present_policy(
            host, agent if fold_id(agent) in there else "", profile=profile, policy_file=policy_file
        )

    return build
