"""What is told of work that is handed on, and of the steps of a task. Pure, like the rest of the projection."""

from metier.decisions import describe_failure
from metier.engine.entries.step import DoubtResolved, StepFinished
from metier.engine.entries.task import CallPlanned, ChildEnded, ChildRequested
from metier.engine.entries.task import ResultChecked as ResultCheckedEntry
from metier.engine.entries.task import TaskPlanned as TaskPlannedEntry
from metier.engine.state import RunState
from metier.events.payload import Payload
from metier.events.run import ResultChecked
from metier.events.step import StepOutcomeAnswered
from metier.events.task import ChildRunFinished, ChildRunStarted, TaskPlanned, TaskStepChanged, TaskStepState
from metier.providers.known_cost import find_cost

SUMMARY_CHARACTERS = 400


def project_work(
    entry: TaskPlannedEntry | CallPlanned | ChildRequested | ChildEnded | ResultCheckedEntry | DoubtResolved,
    state: RunState,
) -> list[Payload]:
    match entry:
        case TaskPlannedEntry():
            order = state.started.order if state.started else None
            return [TaskPlanned(task_id=order.task_id if order else "", steps=tuple(s.file for s in entry.steps))]
        case CallPlanned():
            return []  # the step that follows says it
        case ChildRequested():
            order = entry.order
            started = ChildRunStarted(
                step_id=entry.step_id,
                child_run_id=entry.child_run_id,
                agent=order.agent,
                task=(order.task_id or order.task)[:SUMMARY_CHARACTERS],
                max_turns=order.limits.max_turns,
                max_cost_usd=order.limits.max_cost_usd,
            )
            return [started, *_change(entry.step_id, state, "running")]
        case ChildEnded():
            shared = {"step_id", "child_run_id", "status", "turns"}
            cost = find_cost(entry.cost_usd, tokens=entry.input_tokens + entry.output_tokens)
            return [ChildRunFinished(**entry.model_dump(include=shared), cost_usd=cost)]
        case ResultCheckedEntry():
            return [ResultChecked(accepted=not entry.failures, failures=entry.failures)]
        case DoubtResolved():
            told = StepOutcomeAnswered(step_id=entry.step_id, answer=entry.answer, answered_by=entry.answered_by)
            if entry.answer == "skip":
                return [told, *_change(entry.step_id, state, "skipped", message="A person skipped it")]
            return [told, *(_change(entry.step_id, state, "succeeded") if entry.answer == "done" else [])]


def project_task_step(entry: StepFinished, state: RunState) -> list[Payload]:
    """The step of a task has an end; nothing for the steps of other runs."""
    if entry.status == "succeeded":
        return _change(entry.step_id, state, "succeeded")
    return _change(entry.step_id, state, "failed", message=describe_failure(entry.text)[:SUMMARY_CHARACTERS])


def list_task_steps(state: RunState) -> list[TaskStepChanged]:
    """How every step of a task stands, in order; nothing where no task plans the run."""
    if not state.plan:
        return []
    return [
        TaskStepChanged(
            step_id=step.step_id,
            file=planned.file,
            name=planned.name,
            state=_find_state(step.phase, step.finished),
            message=_describe(step.finished),
        )
        for planned, step in zip(state.plan, state.steps, strict=True)
    ]


def _describe(finished: StepFinished | None) -> str:
    return describe_failure(finished.text)[:SUMMARY_CHARACTERS] if finished is not None and finished.is_error else ""


def _find_state(phase: str, finished: StepFinished | None) -> TaskStepState:
    if finished is None:
        return "running" if phase == "running" else "pending"
    if finished.status == "succeeded":
        return "succeeded"
    return "skipped" if finished.status == "skipped" else "failed"


def _change(step_id: str, state: RunState, now: TaskStepState, *, message: str = "") -> list[Payload]:
    number = next((i for i, step in enumerate(state.steps) if step.step_id == step_id), None)
    if not state.plan or number is None:
        return []
    planned = state.plan[number]
    changed = TaskStepChanged(step_id=step_id, file=planned.file, name=planned.name, state=now, message=message)
    return [changed]
