"""The row of a run in the index, from the entries that its journal begins with. Pure."""

from datetime import datetime

from metier.engine import entries as e
from metier.engine.state import fold
from metier.store.base import RunRow


def build_row(run_id: str, *entries: e.Entry, now: datetime, queue: str = "") -> RunRow:
    """The first entry says what the run is, all of them how it stands."""
    state = fold(run_id, entries)
    started = state.started
    assert started is not None, "a journal begins with the start of its run"
    return RunRow(
        run_id=run_id,
        context_id=started.context_id,
        status=state.status,
        task=started.task,
        agent=started.agent,
        model=started.model,
        parent_run_id=started.parent_run_id,
        created_at=now,
        updated_at=now,
        turns=state.turn,
        cost_usd=state.cost_usd,
        tokens=state.input_tokens + state.output_tokens,
        reason=state.failure.reason if state.failure else "",
        queue=queue,
        task_id=(started.order.task_id or started.order.step_of) if started.order is not None else "",
    )
