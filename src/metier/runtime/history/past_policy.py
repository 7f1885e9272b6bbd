"""What rules would have changed: the calls of past runs, judged again by those in force or by those of a draft."""

from collections.abc import Callable
from functools import cache

from metier.approval.judge import RulePolicy
from metier.dataclass import dataclass
from metier.definitions.agent import FILE_NAME as AGENT_FILE
from metier.definitions.ids import fold_id
from metier.definitions.profile import Profile
from metier.runtime.checks.backtest import Change, backtest
from metier.runtime.checks.present_policy import build_present_policy
from metier.runtime.history.entries import read_history
from metier.runtime.host import Host
from metier.runtime.runs import Runtime
from metier.runtime.workspace.listed import list_definitions


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRuns:
    runs: int
    calls: int
    """Those that were judged."""
    changes: tuple[Change, ...]
    """Those of them that would be judged differently."""


async def backtest_past_runs(runtime: Runtime, *, runs: int, host: bytes | None = None) -> PastRuns:
    """Newest first. `host` is a draft of the rules of the workspace. Raises `ConfigError` for rules with a problem."""
    build = _open_by_agent(runtime.place, host)
    build("", "guarded")  # a draft that cannot be used is refused, also where no run was made yet
    rows = await runtime.store.list_runs(limit=runs)
    found = [backtest(row.run_id, await read_history(runtime, row.run_id), build) for row in rows]
    return PastRuns(
        runs=len(rows),
        calls=sum(each.calls for each in found),
        changes=tuple(change for each in found for change in each.changes),
    )


def _open_by_agent(place: Host, host: bytes | None) -> Callable[[str, Profile], RulePolicy]:
    """Policies are built once for each agent and profile that runs had; one that is gone counts as the built-in."""
    there = list_definitions(place.workspace, "agents", AGENT_FILE)

    @cache
    def build(agent: str, profile: Profile) -> RulePolicy:
        return build_present_policy(place, agent if fold_id(agent) in there else "", profile=profile, host=host)

    return build
