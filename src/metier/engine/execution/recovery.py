"""Recovery of a step that has an intent and no result: find its outcome, repeat it if allowed, otherwise ask."""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from metier.approval.judge import name_call
from metier.engine import actions as a
from metier.engine.entries.run import RunPaused
from metier.engine.entries.step import SpoolIdentity, StepFinished, StepInDoubt
from metier.engine.execution.file_changes import add_changes
from metier.engine.execution.step_execution import (
    build_context,
    build_finished,
    finish_steps,
    get_spool_path,
    is_work_of_skill,
)
from metier.engine.journal import RunLog
from metier.engine.projection import tool_of
from metier.engine.services import Services
from metier.engine.state.steps import Step
from metier.store.machine import MachineIdentity
from metier.tools.base import Probing
from metier.tools.effects import REPEATABLE
from metier.tools.process.spool import SpoolNote, get_identity, is_lost, read_spool, wait_until_released
from metier.views.call_line import build_line

_OUT_OF_SIGHT = (
    "it was begun on another machine, in another folder or in one that is gone; its end cannot be seen from here"
)
_STILL_RUNNING = "it is still running, and cannot be ended"


class _Unknown(Struct, frozen=True):
    """The reason why a step's outcome is unknown."""

    why: str


async def settle_doubt(action: a.SettleDoubt, log: RunLog, services: Services) -> None:
    """Adopt the result, repeat the step, or ask the user, in this order of preference."""
    step = log.state.step(action.step_id)
    if step.phase == "in_doubt":
        await log.record(RunPaused(pause="in_doubt", reason=f"Step {step.step_id} is in doubt"))
        return
    assert step.started is not None
    found = None if step.started.effect in REPEATABLE else await _find_out(step, log, services)
    if found is None and not await _has_ended(step, services):
        found = _Unknown(_STILL_RUNNING)
    if isinstance(found, StepFinished):
        await log.record(await add_changes(found, step, services))
    elif found is None:
        # The effect is repeatable, or never started.
        await finish_steps([step], log, services)
    else:
        await _ask(step, found, log)


async def _find_out(step: Step, log: RunLog, services: Services) -> StepFinished | _Unknown | None:
    """Return the result if it can be determined, None if the effect never started."""
    name, arguments = name_call(step.action)
    tool = services.tools.find(name)
    # The tool's own record has the whole result; the note in the spool has only the exit code.
    if isinstance(tool, Probing):
        result = await tool.probe(arguments, build_context(step, log, services))
        if result is not None and not (result.is_final and result.ok):
            # Repeating the step returns the stored question, delegation or failure, without a second effect.
            return None
        if result is not None:
            finished = await build_finished(step, name, result, duration_ms=0, services=services)
            return replace(finished, adopted=True)
    if tool is None or not tool.info.spools:
        return _Unknown("the tool leaves no trace of its own")
    spool = get_spool_path(step, services)
    if is_lost(spool):
        return _Unknown("a step of this name was begun in entries that the journal has lost")
    assert step.started is not None
    sight = judge_sight(step.started.spool, folder=get_identity(spool.parent), machine=services.machine)
    if sight == "other folder":
        return _Unknown(_OUT_OF_SIGHT)
    if not await wait_until_released(spool):
        return _Unknown(_STILL_RUNNING)
    finished = _judge_note(step, read_spool(spool), sight=sight)
    if isinstance(finished, StepFinished) and is_work_of_skill(name, services.tools):
        # The failure policy applies to adopted results too.
        return replace(finished, counts_as_failure=finished.is_error)
    return finished


async def _has_ended(step: Step, services: Services) -> bool:
    """Wait for a program that outlived the killed process, because two at once would interfere."""
    tool = services.tools.find(name_call(step.action)[0])
    return tool is None or not tool.info.spools or await wait_until_released(get_spool_path(step, services))


type Sight = Literal["whole", "notes only", "other folder"]


def judge_sight(intent: SpoolIdentity | None, *, folder: str, machine: MachineIdentity) -> Sight:
    """Determine how much of an effect's traces this process can see.

    `whole`: the notes, and whether the process still runs, so a missing note means that it never started.
    `notes only`: existing notes are valid, but missing ones may still appear. `other folder`: these are not its notes.
    """
    if intent is None:  # written by a version that did not record it
        return "notes only"
    if not folder or folder != intent.folder:
        return "other folder"
    # Locks are visible within one boot, and no process survives a reboot of the machine.
    is_same_boot = bool(intent.boot) and intent.boot == machine.boot
    return "whole" if is_same_boot or intent.machine == machine.machine else "notes only"


def _judge_note(step: Step, note: SpoolNote, *, sight: Sight) -> StepFinished | _Unknown | None:
    if not note.started:
        return None if sight == "whole" else _Unknown(_OUT_OF_SIGHT)
    if not note.ended:
        return _Unknown("it was started, and nothing says how it ended")
    # The program was told to stop and may have done any part of its work.
    if note.stopped:
        return _Unknown("it was started, and was killed with the agent before it ended by itself")
    is_failed = note.exit_code != 0
    text = f"It ended with exit code {note.exit_code}; what it printed was lost when the agent was killed"
    return StepFinished(
        step_id=step.step_id,
        status="failed" if is_failed else "succeeded",
        text=text,
        is_error=is_failed,
        exit_code=note.exit_code,
        error_type="execution_failed" if is_failed else "",
        adopted=True,
    )


async def _ask(step: Step, unknown: _Unknown, log: RunLog) -> None:
    assert step.started is not None
    tool = tool_of(step.action.params, step.action.type)
    call = f"{tool} {build_line(tool, step.action.params)}".rstrip()
    known = f"{call}: {unknown.why}"
    reason = f"Step {step.step_id} is in doubt: {known}. Answer with done, retry, skip or abort"
    await log.record(StepInDoubt(step_id=step.step_id, known=known), RunPaused(pause="in_doubt", reason=reason))
