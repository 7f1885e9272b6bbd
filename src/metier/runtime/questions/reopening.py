"""Going on with a run that a limit or its provider ended: which can, what must be given, and what is written down."""

from dataclasses import replace

from metier.dataclass import dataclass
from metier.engine import entries as e
from metier.engine.decide import get_run_limits
from metier.engine.entry_types.limits import Limit
from metier.engine.state import RunState
from metier.errors import UsageError
from metier.providers.failures import list_reasons
from metier.runtime.children.causes import find_failed_step
from metier.runtime.children.children import read_run
from metier.store.base import Store

_LIMIT_OF_REASON: dict[str, Limit] = {
    "max_turns_exceeded": "max_turns",
    "budget_exceeded": "max_cost_usd",
    "run_timeout": "timeout_seconds",
}
FLAGS: dict[Limit, str] = {
    "max_turns": "--max-turns",
    "max_cost_usd": "--max-cost-usd",
    "timeout_seconds": "--timeout",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedLimits:
    """What a person raises; nothing where a limit stays as it is."""

    max_turns: int | None = None
    max_cost_usd: float | None = None
    timeout_seconds: float | None = None

    @property
    def is_any(self) -> bool:
        return self != RaisedLimits()


def find_limit(state: RunState) -> Limit | None:
    """The limit that the run ended at or waits with; nothing where it goes on, or ended otherwise."""
    if state.pause is not None:
        return state.pause.limit
    return _LIMIT_OF_REASON.get(state.failure.reason) if state.failure is not None else None


def can_reopen(state: RunState) -> bool:
    """A limit ended it, or a provider that may answer now."""
    return find_limit(state) is not None or (state.failure is not None and state.failure.reason in list_reasons())


def suggest_limit(state: RunState, limit: Limit) -> float:
    """Twice what was allowed: as much again."""
    limits = get_run_limits(state)
    match limit:
        case "max_turns":
            return max(limits.max_turns, state.turn + state.delegated_turns) * 2
        case "max_cost_usd":
            return round(max(limits.max_cost_usd or 0.0, state.cost_usd) * 2, 4)
        case "timeout_seconds":
            return 600


def build_raise(state: RunState) -> RaisedLimits:
    """As much again of what ended the run; nothing where its provider did."""
    limit = find_limit(state)
    if limit is None:
        return RaisedLimits()
    value = suggest_limit(state, limit)
    return replace(RaisedLimits(), **{limit: int(value) if limit == "max_turns" else value})


def render_command(state: RunState, run_id: str) -> str:
    """The command that goes on; empty where none does."""
    limit = find_limit(state)
    if limit is not None:
        return f"agent resume {run_id} {FLAGS[limit]} {suggest_limit(state, limit):g}"
    return f"agent resume {run_id}" if can_reopen(state) else ""


async def find_chain(store: Store, state: RunState) -> list[RunState]:
    """The run, and below it those that one failed because of the other, the lowest last."""
    chain = [state]
    while (step := find_failed_step(chain[-1])) is not None and step.delegated is not None:
        chain.append(await read_run(store, step.delegated.child_run_id))
    return chain


def check_raise(state: RunState, raised: RaisedLimits, *, run_id: str) -> None:
    """Whether this is enough to go on with; `state` is the lowest run that failed. Raises `UsageError`."""
    limit = find_limit(state)
    if limit is not None and getattr(raised, limit) is None:
        message = state.failure.message if state.failure else state.pause.reason if state.pause else ""
        raise UsageError(f"{message}; it goes on with a higher one", hint=f"Run `{render_command(state, run_id)}`")
    turns = state.turn + state.delegated_turns
    if limit == "max_turns" and raised.max_turns is not None and raised.max_turns <= turns:
        raise UsageError(f"The run took {turns} turns already", hint="Give --max-turns a higher number")
    if limit == "max_cost_usd" and raised.max_cost_usd is not None and raised.max_cost_usd <= state.cost_usd:
        raise UsageError(f"The run cost {state.cost_usd:.4f} USD already", hint="Give --max-cost-usd a higher number")


def build_entries(chain: list[RunState], state: RunState, raised: RaisedLimits, *, by: str) -> list[e.Entry]:
    """What the journal of one run of the chain gets."""
    entries: list[e.Entry] = []
    if raised.is_any:
        entries.append(
            e.LimitsRaised(
                max_turns=raised.max_turns,
                max_cost_usd=raised.max_cost_usd,
                timeout_seconds=raised.timeout_seconds,
                raised_by=by,
            )
        )
    lowest = chain[-1]
    if state is lowest:
        if state.failure is not None:
            entries.append(e.RunReopened(reason=state.failure.reason, reopened_by=by))
        return entries
    step = find_failed_step(state)
    assert step is not None
    reason = f"Run {chain[chain.index(state) + 1].run_id} goes on"
    return [*entries, e.RunReopened(reason=reason, reopened_by=by, step_id=step.step_id)]
