"""The status of a run for every interface: the pause or failure, how to continue, and the exit code."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from metier.decisions import TaskState, describe_failure, read_failure
from metier.engine.decide import get_run_limits
from metier.engine.entries.limits import Limit
from metier.engine.entries.run import RunFailed
from metier.engine.execution.child_execution import list_open_delegations
from metier.engine.journal import read_entries
from metier.engine.state.fold import fold
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.engine.state.steps import Step
from metier.providers.facts import find_cost
from metier.providers.failures import list_reasons
from metier.store.base import RunRow, Store
from metier.store.failures import RunUnknown
from metier.views.user_question import UserQuestion, parse_question

# 2 (invalid usage), 9 (no sandbox) and 10 (in use) are codes of errors, not of runs.
DONE, FAILED, APPROVAL, INPUT, DENIED, BUDGET, LIMIT, PROVIDER = 0, 1, 3, 4, 5, 6, 7, 8
# 128 plus the number of the signal, as shells report it. SIGBREAK has no number in POSIX; it counts as SIGTERM.
SIGNALS = {"SIGHUP": 129, "SIGINT": 130, "SIGQUIT": 131, "SIGTERM": 143, "SIGBREAK": 143}

_CODE_OF_REASON = {
    "max_turns_exceeded": LIMIT,
    "run_timeout": LIMIT,
    "budget_exceeded": BUDGET,
    "prompt_too_large": BUDGET,
    "denied": DENIED,
}
_CODE_OF_PAUSE = {"approval": APPROVAL, "input": INPUT, "in_doubt": INPUT, "changed_code": INPUT}
_LIMIT_OF_REASON: dict[str, Limit] = {
    "max_turns_exceeded": "max_turns",
    "budget_exceeded": "max_cost_usd",
    "run_timeout": "timeout_seconds",
}

USER_PAUSES = frozenset({"approval", "input", "in_doubt", "step_failed", "changed_code", "limit", "explicit"})
"""Pauses that only the user can end. The others end by themselves, or the user caused them."""

type WaitKind = Literal[
    "", "interrupted", "stopped", "approval", "input", "in_doubt", "step_failed", "changed_code", "limit"
]


class RunTotals(Struct, frozen=True, kw_only=True):
    """Turns, tokens and cost of a run and its descendants so far."""

    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    @property
    def known_cost_usd(self) -> float | None:
        """Return the cost; None if it is unknown."""
        return find_cost(self.cost_usd, tokens=self.input_tokens + self.output_tokens)


class RunStatus(Struct, frozen=True, kw_only=True):
    """The status of a run, with the descendant that waits or failed. Built by `compute_status`."""

    row: RunRow
    state: RunState
    waiting: RunState
    """The run that waits: this one or a descendant."""
    failed: RunState | None = None
    """The run whose failure stopped this one: this one or a descendant."""
    others: tuple[RunState, ...] = ()
    """Other descendants that also wait."""
    question: UserQuestion | None = None
    """Question of the waiting run."""
    child_statuses: Mapping[str, str] = field(default_factory=dict[str, str])
    """Index statuses of the children whose end isn't in this run's journal yet, by run ID."""
    totals: RunTotals

    @property
    def run_id(self) -> str:
        return self.state.run_id

    @property
    def status(self) -> TaskState:
        return self.state.status

    @property
    def is_final(self) -> bool:
        return self.state.phase in FINAL

    @property
    def is_stopped(self) -> bool:
        """Return True if a failed step stopped the run. A user may still fix it; for a caller this is the result."""
        return self.pause == "step_failed"

    @property
    def is_over(self) -> bool:
        """Return True if a caller has nothing more to wait for: only the user could continue the run."""
        return self.is_final or self.is_stopped

    @property
    def pause(self) -> str:
        """Return the kind of the pause; empty if the run isn't paused."""
        return self.waiting.pause.pause if self.waiting.pause is not None else ""

    @property
    def pause_reason(self) -> str:
        return self.waiting.pause.reason if self.waiting.pause is not None else ""

    @property
    def waits_for(self) -> str:
        """Return the ID of the waiting run; empty if the run isn't paused."""
        return self.waiting.run_id if self.waiting.pause is not None else ""

    @property
    def waits_for_user(self) -> bool:
        return not self.is_final and self.pause in USER_PAUSES

    @property
    def is_asking(self) -> bool:
        """Return True if the run asks a question that a caller other than the user may answer."""
        return not self.is_over and self.pause == "input" and self.question is not None

    @property
    def wait_kind(self) -> WaitKind:
        """Return what the run needs from the user: an answer, an approval, a higher limit or just a resume."""
        if self.is_final:
            return "limit" if self.limit is not None and self.can_continue else ""
        if self.waiting.pause is None:
            return "interrupted"
        pause = self.waiting.pause.pause
        return "stopped" if pause in ("explicit", "signal", "storage", "delegation") else pause

    @property
    def open_steps(self) -> tuple[Step, ...]:
        """List the steps that wait for an approval, including those of other descendants."""
        if self.is_final:
            return ()
        return tuple(step for run in (self.waiting, *self.others) for step in run.steps if step.phase == "asking")

    @property
    def approval_ids(self) -> tuple[str, ...]:
        return tuple(step.approval_id for step in self.open_steps)

    @property
    def failure(self) -> RunFailed | None:
        return self.state.failure

    @property
    def failure_text(self) -> str:
        """Describe the failure in one sentence; the status if the run didn't fail."""
        return f"{self.failure.message} ({self.failure.reason})" if self.failure is not None else self.status

    @property
    def cause(self) -> str:
        """Return the output of the failed step."""
        return get_cause(self.failed)

    @property
    def reason(self) -> str:
        """Return the code of the failure, or the kind of the pause."""
        return self.failure.reason if self.failure is not None else self.pause

    @property
    def message(self) -> str:
        """Return the description of the failure or the pause."""
        return self.failure.message if self.failure is not None else self.pause_reason

    @property
    def limit(self) -> Limit | None:
        """Return the limit that the run or a descendant reached."""
        return find_limit(self.failed or self.waiting)

    @property
    def suggested_limit(self) -> float:
        """Return the value to raise the limit to; zero without a limit."""
        return suggest_limit(self.failed or self.waiting, self.limit) if self.limit is not None else 0.0

    @property
    def can_continue(self) -> bool:
        """Return True if `agent resume` can continue it: it is open, or a limit or its provider ended it."""
        return not self.is_final or can_reopen(self.failed or self.state)

    def exit_code(self, *, signal: str = "") -> int:
        """Return the exit code for a command that drove the run; `signal` is the signal that stopped the command."""
        code = exit_code(self.waiting, signal=signal)
        # A task that stopped at a failed step exits with the code of that step.
        return (exit_code(self.failed) or FAILED) if code == FAILED and self.failed is not None else code


def compute_status(
    row: RunRow,
    state: RunState,
    *,
    waiting: RunState | None = None,
    failed: RunState | None = None,
    others: tuple[RunState, ...] = (),
    child_statuses: Mapping[str, str] | None = None,
) -> RunStatus:
    """Build the status of a run; without `waiting`, that of the run alone, regardless of its descendants."""
    waiting = waiting or state
    asked = waiting.question
    question = (
        parse_question(asked.request_id, asked.question, asked.fields, is_checked=asked.resumes) if asked else None
    )
    if failed is None and waiting is state and (state.failure is not None or _is_stopped(state)):
        failed = state
    return RunStatus(
        row=row,
        state=state,
        waiting=waiting,
        failed=failed,
        others=others,
        question=question,
        child_statuses=child_statuses or {},
        totals=_count_recorded(state),
    )


async def get_status(store: Store, state: RunState, *, row: RunRow | None = None) -> RunStatus:
    """Return the status of a run together with its descendants. Raises `RunUnknown`."""
    row = row or await store.find_run(state.run_id)
    if row is None:
        raise RunUnknown(
            f"There is no run {state.run_id!r}", hint="Run `agent runs list` to list the runs of this workspace"
        )
    tree = await _read_tree(store, state)
    every = _list_waiting(tree)
    waiting = _choose_waiting(every)
    # The journal has the status of the others.
    children = [await store.find_run(child.run_id) for child in state.children if child.status == "pending"]
    status = compute_status(
        row,
        state,
        waiting=waiting,
        failed=await find_failed(store, waiting),
        others=tuple(each for each in every if each.run_id != waiting.run_id),
        child_statuses={child.run_id: child.status for child in children if child is not None},
    )
    return replace(status, totals=_count_all(tree))


class _RunTree(Struct, frozen=True):
    """A run with the child runs that its open steps wait for."""

    state: RunState
    children: tuple["_RunTree", ...] = ()


async def _read_tree(store: Store, state: RunState) -> _RunTree:
    ids = [request.child_run_id for _, request in list_open_delegations(state)]
    return _RunTree(state, tuple([await _read_tree(store, await read_run(store, run_id)) for run_id in ids]))


def _count_recorded(state: RunState) -> RunTotals:
    """Count what the run's journal has: its own work and that of children whose end it recorded."""
    return RunTotals(
        turns=state.total_turns,
        input_tokens=state.input_tokens,
        output_tokens=state.output_tokens,
        cost_usd=state.cost_usd,
    )


def _count_all(tree: _RunTree) -> RunTotals:
    total = _count_recorded(tree.state)
    ends = {child.run_id: child.ended for child in tree.state.children}
    for child in tree.children:
        spent = _count_all(child)
        # A child that was reopened ended before, and the journal has its totals up to then.
        before = ends.get(child.state.run_id) or RunTotals()
        total = RunTotals(
            turns=total.turns + spent.turns - before.turns,
            input_tokens=total.input_tokens + spent.input_tokens - before.input_tokens,
            output_tokens=total.output_tokens + spent.output_tokens - before.output_tokens,
            cost_usd=total.cost_usd + spent.cost_usd - before.cost_usd,
        )
    return total


async def read_run(store: Store, run_id: str) -> RunState:
    return fold(run_id, await read_entries(store, run_id))


async def list_all_waiting(store: Store, state: RunState) -> list[RunState]:
    """List the waiting runs in the order of their requests: the leaves of the tree of child runs."""
    return _list_waiting(await _read_tree(store, state))


def _list_waiting(tree: _RunTree) -> list[RunState]:
    open_children = [child for child in tree.children if child.state.phase not in FINAL]
    found = [waiting for child in open_children if child.state.started is not None for waiting in _list_waiting(child)]
    is_due = any(child.state.started is None for child in tree.children)
    # If some children have not started, or all have ended, the run itself can continue.
    return [*found, tree.state] if is_due or not found else found


async def get_waiting(store: Store, state: RunState) -> RunState:
    """Return the first run that waits for the user, otherwise the first waiting run."""
    return _choose_waiting(await list_all_waiting(store, state))


def _choose_waiting(waiting: list[RunState]) -> RunState:
    return next((each for each in waiting if each.pause is not None and each.pause.pause in USER_PAUSES), waiting[0])


async def find_failed(store: Store, state: RunState) -> RunState | None:
    """Return the deepest descendant whose failure stopped its parents; None if this run didn't fail."""
    if state.failure is None and not _is_stopped(state):
        return None
    return (await list_chain(store, state))[-1]


async def list_chain(store: Store, state: RunState) -> list[RunState]:
    """Return the run, then the child whose failure stopped it, and so on; the deepest run is last."""
    chain = [state]
    while (step := find_failed_step(chain[-1])) is not None and step.delegated is not None:
        chain.append(await read_run(store, step.delegated.child_run_id))
    return chain


def _is_stopped(state: RunState) -> bool:
    return state.pause is not None and state.pause.pause == "step_failed"


def find_failed_step(state: RunState) -> Step | None:
    """Return the last failed step. Earlier failures did not stop the run."""
    return next((step for step in reversed(state.steps) if step.finished and step.finished.is_error), None)


def get_cause(state: RunState | None) -> str:
    """Return the output of the failed step, redacted and truncated as in the journal; empty if no step failed."""
    if state is not None and state.unaccepted is not None and state.failure is not None:
        return "\n".join(state.unaccepted.failures)
    step = find_failed_step(state) if state is not None else None
    if step is None or step.finished is None:
        return ""
    failure = read_failure(step.finished.text) or {}
    printed = f"{failure['stdout']}\n" if failure.get("stdout") else ""
    return printed + describe_failure(step.finished.text)


def find_limit(state: RunState) -> Limit | None:
    """Return the limit that the run reached, or None."""
    if state.pause is not None:
        return state.pause.limit
    return _LIMIT_OF_REASON.get(state.failure.reason) if state.failure is not None else None


def suggest_limit(state: RunState, limit: Limit) -> float:
    """Return twice the limit or the used amount, whichever is higher."""
    limits = get_run_limits(state)
    match limit:
        case "max_turns":
            return max(limits.max_turns, state.turn + state.delegated_turns) * 2
        case "max_cost_usd":
            return round(max(limits.max_cost_usd or 0.0, state.cost_usd) * 2, 4)
        case "timeout_seconds":
            # The state doesn't contain the timeout of the last drive, so there is nothing to double.
            return 600


def can_reopen(state: RunState) -> bool:
    """Return True if a limit ended the run, or its provider, which may work again."""
    return find_limit(state) is not None or (state.failure is not None and can_change_model(state))


def can_change_model(state: RunState) -> bool:
    """Return True if its provider ended the run, even if it was reopened since, until a model replies."""
    reason = state.failure.reason if state.failure is not None else state.reopened
    return reason in list_reasons() or reason == "prompt_too_large"


def exit_code(state: RunState, *, signal: str = "") -> int:
    """Map the state of one run to an exit code; `signal` is the signal that stopped this process."""
    if state.pause is not None:
        code = BUDGET if state.pause.limit == "max_cost_usd" else LIMIT if state.pause.limit else 0
        return code or _CODE_OF_PAUSE.get(state.pause.pause) or SIGNALS.get(signal, FAILED)
    if state.failure is None:
        return DONE if state.status == "completed" else FAILED
    if state.failure.reason in list_reasons():
        return PROVIDER
    return _CODE_OF_REASON.get(state.failure.reason, DENIED if state.status == "blocked" else FAILED)
