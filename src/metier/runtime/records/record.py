"""The summary of a run, written from its journal at every stop: `run.json`, its index row and its usage."""

from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import cast

from pydantic import JsonValue
from pydantic_core import from_json, to_json

from metier.engine.entries.entry import Entry
from metier.engine.entries.model import ModelReplied
from metier.engine.entries.run import RunFailed, RunFinished, RunStarted
from metier.engine.entries.skill import CatalogLoaded
from metier.engine.entries.step import DoubtResolved, StepFinished, StepInDoubt, StepStarted
from metier.engine.journal import measure
from metier.engine.projection import tool_of
from metier.engine.state.fold import fold
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.providers.facts import find_cost
from metier.runtime.records.index_rows import TYPED
from metier.store.base import RunRow, Store
from metier.store.usage import UsageRow

FILE_NAME = "run.json"
VERSION = 1
_WORDS = ("task", "message", "result", "steps")
"""Fields with text of users, models and tools, which is redacted. The others are names, numbers and digests."""


def find_agent(started: RunStarted) -> str:
    """Return the ID of the agent. A task has none of its own, so this is the default agent of its steps."""
    order = started.order
    return started.agent or (order.agent if order is not None and order.task_id else "")


def build_row(run_id: str, *entries: Entry, now: datetime, queue: str = "") -> RunRow:
    state = fold(run_id, entries)
    started = state.started
    assert started is not None, "a journal begins with the start of its run"
    return RunRow(
        run_id=run_id,
        context_id=started.context_id,
        status=state.status,
        task=started.task,
        agent=find_agent(started),
        model=started.model,
        parent_run_id=started.parent_run_id,
        created_at=now,
        updated_at=now,
        turns=state.total_turns,
        cost_usd=state.cost_usd,
        tokens=state.input_tokens + state.output_tokens,
        reason=state.failure.reason if state.failure else "",
        queue=queue,
        task_id=(started.order.task_id or started.order.step_of) if started.order is not None else "",
    )


type Clean = Callable[[JsonValue], JsonValue]


def write_record(folder: Path, entries: Iterable[Entry], state: RunState, *, now: datetime, clean: Clean) -> None:
    """Replace the whole record. Users may share the file, so it is redacted like the event log."""
    record = build_record(entries, state, now=now)
    record |= {name: clean(record[name]) for name in _WORDS}
    # A fixed name: the next driver of the run overwrites the file that a killed one left.
    temporary = folder / f".{FILE_NAME}.part"
    # Not synced: if a power cut damages it, the next driver writes the record again from the journal.
    temporary.write_bytes(to_json(record, indent=2) + b"\n")
    # Readers see the old record or the new one, never half of it.
    temporary.replace(folder / FILE_NAME)


def is_current(folder: Path, state: RunState) -> bool:
    """Return True if an ended run's record covers all its entries."""
    if state.phase not in FINAL:
        return False
    try:
        # pydantic's parser, because the record of a long run is long and `json` is slow.
        record: object = from_json((folder / FILE_NAME).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and cast("dict[str, object]", record).get("journal_entries") == state.seq


def build_record(entries: Iterable[Entry], state: RunState, *, now: datetime) -> dict[str, JsonValue]:
    started = state.started
    assert started is not None
    journal = list(entries)
    return {
        "version": VERSION,
        "run_id": state.run_id,
        "context_id": started.context_id,
        "trace_id": started.trace_id,
        "task": _describe_task(started),
        "agent": {"id": find_agent(started)},
        "status": state.status,
        "reason": state.failure.reason if state.failure else "",
        "message": state.failure.message if state.failure else "",
        "mode": started.mode,
        "provider": started.provider,
        "model": started.model,
        "answered_by": list(dict.fromkeys(each.reply.model for each in journal if isinstance(each, ModelReplied))),
        "profile": started.profile,
        "started_at": started.started_at,
        "duration_ms": _find_duration(journal, state, now=now),
        "recorded_at": now.isoformat(),
        "workspace": started.workspace,
        "skills": list(dict.fromkeys(state.used_skills)),
        "skill_problems": next((each.problems for each in journal if isinstance(each, CatalogLoaded)), 0),
        "definitions": dict(started.pins),
        "turns": state.total_turns,
        "usage": {"input_tokens": state.input_tokens, "output_tokens": state.output_tokens},
        "cost_usd": find_cost(state.cost_usd, tokens=state.input_tokens + state.output_tokens),
        "result": state.result,
        "steps": _steps(journal),
        "journal_entries": state.seq,
    }


def _describe_task(started: RunStarted) -> dict[str, JsonValue]:
    """Describe the task. A prompt has no ID; a step has the ID of its task and its own file."""
    order = started.order
    if order is None:
        return {"text": started.task, "id": "", "step": "", "inputs": {}}
    return {
        "text": started.task,
        "id": order.task_id or order.step_of,
        "step": order.step_file,
        "inputs": {**order.inputs},
    }


def _find_duration(entries: Iterable[Entry], state: RunState, *, now: datetime) -> float | None:
    """Return the duration until the end or until now; None if an older version started the run."""
    began = state.started.started_at if state.started else ""
    if not began:
        return None
    if state.phase not in FINAL:
        return measure(began, now)
    ends = [entry.duration_ms for entry in entries if isinstance(entry, RunFinished | RunFailed)]
    # The last one, because a run that was reopened has ended before.
    return ends[-1]


def _steps(entries: Iterable[Entry]) -> list[JsonValue]:
    steps: dict[str, dict[str, JsonValue]] = {}
    for entry in entries:
        if isinstance(entry, StepStarted):
            steps[entry.step_id] = {
                "step_id": entry.step_id,
                "uses": tool_of(entry.action.params, entry.action.type),
                "input": entry.action.params,
                "effect": entry.effect,
                "attempts": entry.attempt,
            }
        elif isinstance(entry, StepFinished):
            steps.setdefault(entry.step_id, {"step_id": entry.step_id}).update(
                {
                    "status": entry.status,
                    "output": entry.text[:2000],
                    "exit_code": entry.exit_code,
                    "duration_ms": entry.duration_ms,
                    "artifacts": list(entry.artifacts),
                }
            )
        elif isinstance(entry, StepInDoubt):
            steps.setdefault(entry.step_id, {"step_id": entry.step_id})["status"] = "in_doubt"
        elif isinstance(entry, DoubtResolved):
            steps.setdefault(entry.step_id, {"step_id": entry.step_id}).update(_describe_answer(entry))
    return list(steps.values())


def _describe_answer(entry: DoubtResolved) -> dict[str, JsonValue]:
    """Describe the user's answer for an interrupted step, and the status that follows from it."""
    status = {"done": "succeeded", "skip": "skipped"}.get(entry.answer)
    said: dict[str, JsonValue] = {"answer": entry.answer, "answered_by": entry.answered_by}
    return said if status is None else {**said, "status": status}


async def record_usage(store: Store, state: RunState) -> None:
    """Record the usage of a run that ended or waits. Recording it twice counts it once."""
    await store.usage.record(state.run_id, list_usage(state))


def list_usage(state: RunState) -> list[UsageRow]:
    """List the usage rows, without those of typed commands, which call no model."""
    typed = f"{TYPED}/{TYPED}"
    return [UsageRow(*key, amounts) for key, amounts in state.usage.items() if key[1] != typed]
