"""How a run stands, as the exit code of the command that drove it. The table is in the documentation of the command."""

from metier.engine.state import RunState
from metier.providers.failures import list_reasons

DONE, FAILED, APPROVAL, INPUT, DENIED, BUDGET, LIMIT, PROVIDER = 0, 1, 3, 4, 5, 6, 7, 8
SIGNALS = {"SIGHUP": 129, "SIGINT": 130, "SIGQUIT": 131, "SIGTERM": 143, "SIGBREAK": 143}

_BY_REASON = {
    "max_turns_exceeded": LIMIT,
    "run_timeout": LIMIT,
    "budget_exceeded": BUDGET,
    "prompt_too_large": BUDGET,
    "denied": DENIED,
}
_BY_PAUSE = {"approval": APPROVAL, "input": INPUT, "in_doubt": INPUT, "changed_code": INPUT}


def get_exit_code(state: RunState, *, signal: str = "") -> int:
    """`signal` is the one that this process got, if it got one."""
    if state.pause is not None:
        code = BUDGET if state.pause.limit == "max_cost_usd" else LIMIT if state.pause.limit else 0
        return code or _BY_PAUSE.get(state.pause.pause) or SIGNALS.get(signal, FAILED)
    if state.failure is None:
        return DONE if state.status == "completed" else FAILED
    if state.failure.reason in list_reasons():
        return PROVIDER
    return _BY_REASON.get(state.failure.reason, DENIED if state.status == "blocked" else FAILED)
