"""The fold of a journal into a run's state. Only `apply` changes a state. Pure.

A state has one owner, so entries change it in place. That makes folding linear in the length of the journal.
"""

import json
from collections.abc import Iterable
from typing import assert_never

from msgspec.structs import replace

from metier.context.tokens import calibrate
from metier.context.trimming import History, Trim, apply_trims
from metier.decisions import ActionStep, TaskState, find_invocation, get_owner
from metier.engine.entries.entry import Entry
from metier.engine.entries.limits import LimitsRaised
from metier.engine.entries.model import DecisionMade, DecodeFailed, ModelCallStarted, ModelReplied, ProgressVerified
from metier.engine.entries.question import ApprovalAsked, ApprovalDecided, InputAsked, InputGiven, UserMessageAdded
from metier.engine.entries.run import (
    ModelChanged,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunPaused,
    RunReopened,
    RunResumed,
    RunStarted,
    SkillCodeAccepted,
)
from metier.engine.entries.skill import CatalogLoaded, ContextDisclosed, HandedOff, SkillsRanked
from metier.engine.entries.step import (
    DoubtResolved,
    FailureTold,
    HooksRan,
    StepFinished,
    StepInDoubt,
    StepRetried,
    StepStarted,
    UndoFinished,
    UndoStarted,
)
from metier.engine.entries.task import CallPlanned, ChildEnded, ChildRequested, ResultChecked, TaskPlanned
from metier.engine.state.authority import adopt, reopen
from metier.engine.state.due_hooks import apply_hooks
from metier.engine.state.phases import IllegalTransition
from metier.engine.state.run_state import Child, RunState
from metier.engine.state.steps import (
    Step,
    add_candidates,
    build_exchange,
    build_identity,
    build_memory_key,
    edit_arguments,
    read_plan,
)
from metier.messages import Spent, user
from metier.store.usage import Amounts, parse_hour

_ADDED_MESSAGE = "The user sent this message while you were working:"
_STATUS_OF_PAUSE: dict[str, TaskState] = {"input": "input_required", "delegation": "delegating"}

_NO_PROGRESS = (RunResumed, RunPaused, ModelCallStarted, StepStarted)
"""Entries that are no progress: a driver that dies during an effect writes them at every attempt."""


def fold(run_id: str, entries: Iterable[Entry]) -> RunState:
    """Fold the entries in order into a state."""
    state = RunState(run_id)
    for entry in entries:
        apply(state, entry)
    return state


def apply(state: RunState, entry: Entry) -> None:
    """Fold one more entry. Raises `IllegalTransition` if it can't follow the state."""
    state.seq += 1
    if not isinstance(entry, _NO_PROGRESS):
        state.attempts = state.deaths = 0
    match entry:
        # The most frequent entries first, because `match` tries the cases in order.
        case ModelCallStarted() | ModelReplied() | DecisionMade() | DecodeFailed():
            _apply_model(state, entry)
        case StepStarted() | StepFinished() | StepRetried() | FailureTold() | StepInDoubt() | DoubtResolved():
            _apply_step(state, entry)
        case ProgressVerified() | CatalogLoaded() | SkillsRanked() | ContextDisclosed() | HandedOff():
            _apply_planning(state, entry)
        case RunStarted() | RunPaused() | RunResumed() | RunFinished() | RunFailed():
            _apply_run(state, entry)
        case RunAdopted():
            adopt(state, entry)
        case LimitsRaised() | RunReopened() | SkillCodeAccepted() | ModelChanged() | UndoStarted() | UndoFinished():
            reopen(state, entry)
        case ApprovalAsked() | ApprovalDecided() | InputAsked() | InputGiven() | UserMessageAdded():
            _apply_answer(state, entry)
        case TaskPlanned() | CallPlanned() | ChildRequested() | ChildEnded() | ResultChecked() | HooksRan():
            _apply_work(state, entry)
        case _:
            assert_never(entry)


def _apply_run(state: RunState, entry: RunStarted | RunPaused | RunResumed | RunFinished | RunFailed) -> None:
    match entry:
        case RunStarted():
            state.started, state.status, state.limits = entry, "in_progress", entry.limits
            state.enter("LOAD_SKILL_CATALOG")
        case RunPaused():
            state.pause, state.hooks.is_notified = entry, False
            state.deaths = 0  # its driver was alive
            state.status = _STATUS_OF_PAUSE.get(entry.pause, "paused")
        case RunResumed():
            if state.pause is not None and state.pause.pause == "step_failed":
                _try_again(state)
            state.pause, state.status = None, "in_progress"
            state.attempts += 1
            state.deaths += bool(entry.left_by)
            if entry.disabled_tools is not None:
                state.disabled = frozenset(entry.disabled_tools)
        case RunFinished():
            _close_turn(state)
            state.result, state.status = entry.result, "completed"
            state.enter("DONE")
        case RunFailed():
            state.failure, state.status, state.pause = entry, entry.status, None
            # A reopened run continues in this phase.
            state.failed_in = state.phase
            state.result = entry.result
            state.enter("ERROR")


def _apply_planning(
    state: RunState,
    entry: CatalogLoaded | SkillsRanked | ContextDisclosed | HandedOff | ProgressVerified,
) -> None:
    match entry:
        case CatalogLoaded():
            state.skills = entry.skills
            state.enter("PREFILTER_SKILLS")
        case SkillsRanked():
            state.candidates, state.strategy = entry.candidates, entry.strategy
            state.min_score = entry.min_score
            state.enter("DISCLOSE_CONTEXT_STAGE")
        case ContextDisclosed():
            state.pieces.extend(entry.pieces)
            state.new_pieces = frozenset(piece.digest for piece in entry.pieces)
            state.wanted = ()
            state.enter("CALL_LLM")
        case HandedOff():
            # The fallback after a failed step comes without a `ProgressVerified`.
            if state.phase == "EXECUTE_STEP":
                state.enter("HANDOFF_OR_FINISH")
            _close_turn(state)
            state.skill, state.next_skill = entry.to_skill, ""
            state.used_skills.append(entry.to_skill)
            state.fell_back = state.fell_back or entry.fallback
            state.enter("DISCLOSE_CONTEXT_STAGE")
        case ProgressVerified():
            # Otherwise the handoff or the end of the run closes the turn.
            if entry.following != "HANDOFF_OR_FINISH":
                _close_turn(state)
            state.enter(entry.following)


def _apply_model(state: RunState, entry: ModelCallStarted | ModelReplied | DecisionMade | DecodeFailed) -> None:
    match entry:
        case ModelCallStarted():
            if not entry.repair and (state.call is None or state.call.turn != entry.turn):
                state.turn = entry.turn
            state.call, state.disabled, state.is_json = entry, frozenset(entry.disabled_tools), entry.is_json
            state.hooks.is_asked_to_stop = False
            # From here on, the plan comes from a reply to this host's request.
            state.is_foreign = False
            state.prompt_limit = entry.prompt_limit or state.prompt_limit
            _forget(state, entry.trims)
        case ModelReplied():
            _count_usage(state, entry)
            state.reply, state.call, state.reopened = entry.reply, None, ""
            state.enter("DECODE_DECISION")
        case DecisionMade():
            _plan_steps(state, entry)
        case DecodeFailed():
            state.repair = entry
            if entry.repair:
                state.enter("CALL_LLM")


def _forget(state: RunState, trims: tuple[Trim, ...]) -> None:
    """Forget trimmed content: later requests omit it too, and reading it again does not count as a repeated call."""
    if not trims:
        return
    smaller = {trim.exchange for trim in trims if trim.what == "exchange"}
    for exchange in state.run:
        if exchange.number in smaller:
            state.lost |= exchange.asked
            for asked in exchange.asked:
                state.repeated.pop(asked, None)
    history = apply_trims(History(run=tuple(state.run), earlier=state.earlier), trims)
    state.run, state.earlier = list(history.run), history.earlier
    if smaller:
        # Trimmed results may have contained project instructions, so these are disclosed again.
        state.told_nearby.clear()
    gone = {trim.digest for trim in trims if trim.what == "piece"}
    state.pieces = [piece for piece in state.pieces if piece.digest not in gone]


def _count_usage(state: RunState, entry: ModelReplied) -> None:
    usage = entry.reply.usage
    state.input_tokens += usage.input_tokens
    state.output_tokens += usage.output_tokens
    state.cost_usd += entry.cost_usd
    started = state.started
    # Under the requested name: vendors answer with dated names of the same model.
    is_own = started is not None and started.provider == entry.reply.provider
    model = started.model if started is not None and is_own else entry.reply.model
    amounts = Amounts(
        calls=1,
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cache_read_tokens,
        output_tokens=usage.output_tokens,
        cost_usd=entry.cost_usd,
        unpriced_calls=int(not entry.cost_usd and bool(usage.input_tokens or usage.output_tokens)),
    )
    _add_usage(state, f"{entry.reply.provider}/{model}", amounts, at=entry.recorded_at)
    if state.call is not None:
        state.factor = calibrate(state.factor, estimated=state.call.estimated_tokens, reported=usage.input_tokens)


def _count_spent(state: RunState, spent: Spent | None) -> None:
    if spent is not None:
        state.input_tokens += spent.input_tokens
        state.output_tokens += spent.output_tokens
        state.cost_usd += spent.cost_usd
        started = state.started
        amounts = Amounts(
            calls=1,
            input_tokens=spent.input_tokens,
            output_tokens=spent.output_tokens,
            cost_usd=spent.cost_usd,
            unpriced_calls=int(not spent.cost_usd and bool(spent.input_tokens or spent.output_tokens)),
        )
        if any(amounts[1:]):
            _add_usage(state, f"{started.provider}/{started.model}" if started is not None else "", amounts)


def _add_usage(state: RunState, model: str, amounts: Amounts, *, at: str = "") -> None:
    """Add usage to the hour of the entry; an entry without a time belongs to the hour of the previous one."""
    # The parent run paid for the entries that a fork copied.
    if state.started is not None and state.seq <= state.started.forked_at:
        return
    last = next(reversed(state.usage), ("", "", ""))
    hour = parse_hour(at) if at else last[0]
    key = (hour, model, state.skill)
    state.usage[key] = state.usage.get(key, Amounts()).plus(amounts)


def _plan_steps(state: RunState, entry: DecisionMade) -> None:
    state.decision, state.rejected, state.repair = entry.decision, entry.rejected, None
    state.is_selected = False
    actions = entry.decision.planned_actions
    state.steps = [
        Step(f"{entry.turn}.{index}", action, is_foreign=state.is_foreign)
        for index, action in enumerate(actions, start=1)
    ]
    if entry.path in ("json", "repaired"):
        # A JSON decision names skill and files in fields of its own; native calls request them as steps.
        state.wanted = entry.decision.required_disclosure_paths
        skill = entry.decision.selected_skill
        if skill and skill != state.skill and not any(action.type == "call_skill" for action in actions):
            state.is_selected = not state.skill
            _choose_skill(state, skill)
    # `finish` alone needs no execution.
    if len(actions) == 1 and actions[0].type == "finish" and not entry.rejected:
        state.enter("HANDOFF_OR_FINISH")
        return
    state.enter("EXECUTE_STEP")
    _leave_when_through(state)


def _leave_when_through(state: RunState) -> None:
    """Finish when all other steps are done; `finish` itself is not executed."""
    if all(step.phase == "finished" or step.action.type == "finish" for step in state.steps):
        state.enter("VERIFY_PROGRESS")


def _apply_step(
    state: RunState,
    entry: StepStarted | StepFinished | StepRetried | FailureTold | StepInDoubt | DoubtResolved,
) -> None:
    step = state.step(entry.step_id)
    match entry:
        case StepStarted():
            step.phase, step.started, step.attempts = "running", entry, entry.attempt
            step.is_hooked_after = False
        case StepFinished():
            _finish_step(state, step, entry)
        case StepRetried(wants_write=True):
            step.phase, step.needs_write = "pending", entry.reason
        case StepRetried():
            # An approval is for one execution, so a retry needs another one.
            step.phase = "pending" if step.asked is not None else "approved"
            step.finished, step.failed_once = None, True
            state.enter("EXECUTE_STEP")
        case FailureTold():
            _tell_failure(state, step, entry)
        case StepInDoubt():
            step.phase = "in_doubt"
        case DoubtResolved():
            _settle(state, step, entry)


def _settle(state: RunState, step: Step, entry: DoubtResolved) -> None:
    """Apply a user's answer about a step whose outcome is unknown."""
    match entry.answer:
        # The answer is the approval, too: the user was asked whether this call may run.
        case "retry":
            step.phase = "approved"
        case "done":
            text = entry.text or "Done, as a person found out; its output was lost"
            _finish_step(state, step, StepFinished(step_id=step.step_id, status="succeeded", text=text))
        case "skip":
            text = entry.text or "Skipped by a person; whether it had an effect is unknown"
            finished = StepFinished(step_id=step.step_id, status="skipped", text=text, is_error=True)
            _finish_step(state, step, finished)
        case "abort":
            state.aborted = True
        case _:
            assert_never(entry.answer)


def _finish_step(state: RunState, step: Step, entry: StepFinished) -> None:
    step.phase, step.finished = "finished", entry
    state.told_nearby |= entry.nearby
    _count_spent(state, entry.spent)
    if not entry.counts_as_failure:
        _take_result(state, step, entry)


def _tell_failure(state: RunState, step: Step, entry: FailureTold) -> None:
    """Turn the failure into an ordinary result, so that the run continues and the model reacts to it."""
    assert step.finished is not None
    state.told_failures.add(build_identity(step.action))
    state.failed_skills.add(get_owner(step.action) or state.skill)
    text = add_candidates(step.finished.text, entry.candidates)
    step.finished = replace(step.finished, text=text, counts_as_failure=False)
    _take_result(state, step, step.finished)


def _take_result(state: RunState, step: Step, entry: StepFinished) -> None:
    key = build_identity(step.action)
    state.repeated[key] = state.repeated.get(key, 0) + 1
    is_work = step.action.type in ("call_tool", "run_command") or find_invocation(step.action) is not None
    if entry.status == "succeeded" and is_work:
        state.results.append(entry.text)
        state.failed_skills.discard(get_owner(step.action) or state.skill)
    if entry.status == "succeeded" and (noted := read_plan(step.action)):
        state.todo = noted
    if step.action.type == "call_skill" and entry.status == "succeeded":
        _choose_skill(state, str(step.action.params.get("skill", "")))
    _leave_when_through(state)


def _choose_skill(state: RunState, skill: str) -> None:
    """Put the first skill in charge at once. A later one needs a handoff, which has its own entry."""
    if state.skill:
        state.next_skill = skill
        return
    state.skill = skill
    state.used_skills.append(skill)


def _apply_work(
    state: RunState,
    entry: TaskPlanned | CallPlanned | ChildRequested | ChildEnded | ResultChecked | HooksRan,
) -> None:
    match entry:
        case TaskPlanned():
            state.plan = entry.steps
            # The plan is turn 1: step IDs have the form `turn.number` in every run.
            state.steps = [
                Step(f"1.{number}", ActionStep(type="delegate", params={"agent": step.agent, "task": step.file}))
                for number, step in enumerate(entry.steps, start=1)
            ]
            state.enter("EXECUTE_STEP")
        case CallPlanned():
            state.steps = [Step("1.1", entry.action, is_foreign=state.is_foreign)]
            state.enter("EXECUTE_STEP")
        case ChildRequested():
            # The step stays `running` until its child has ended.
            state.step(entry.step_id).delegated = entry
            state.children.append(Child.of(entry))
            _count_spent(state, entry.spent)
        case ChildEnded():
            _count_child(state, entry)
        case HooksRan():
            _apply_hooks(state, entry)
        case ResultChecked():
            state.accepted = not entry.failures
            state.unaccepted = entry if entry.failures else None
            if entry.repair:
                _send_back(state, entry)


def _count_child(state: RunState, entry: ChildEnded) -> None:
    child = next(child for child in state.children if child.run_id == entry.child_run_id)
    child.status = entry.status
    # A reopened child ends twice, and each end has its total cost.
    before, child.ended = child.ended, entry
    state.cost_usd += entry.cost_usd - (before.cost_usd if before else 0.0)
    state.input_tokens += entry.input_tokens - (before.input_tokens if before else 0)
    state.output_tokens += entry.output_tokens - (before.output_tokens if before else 0)
    step = state.step(entry.step_id)
    # Each step of a task has the whole limit of turns, so the turns of steps do not add up.
    if step.action.type == "delegate" and not state.plan:
        state.delegated_turns += entry.turns - (before.turns if before else 0)
    if step.delegated is not None and step.delegated.order.call is not None:
        # The waiting skill is called again and gets the result.
        step.phase, step.delegated = "approved", None


def _send_back(state: RunState, entry: ResultChecked) -> None:
    """Return a rejected result to the model."""
    _answer_finish(state, "Not accepted:\n" + "\n".join(f"- {failure}" for failure in entry.failures))


def _apply_hooks(state: RunState, entry: HooksRan) -> None:
    apply_hooks(state, entry)
    if entry.event in ("Stop", "SubagentStop") and entry.decision == "deny":
        state.hooks.blocks += 1
        state.accepted = False
        _answer_finish(state, f"Not finished yet. A hook says: {entry.reason}")


def _answer_finish(state: RunState, text: str) -> None:
    """Answer `finish` like a failed call, and give the model another turn."""
    finish = next(step for step in state.steps if step.action.type == "finish")
    finish.phase = "finished"
    finish.finished = StepFinished(step_id=finish.step_id, status="failed", text=text, is_error=True)
    _close_turn(state)
    state.enter("CALL_LLM")


def _try_again(state: RunState) -> None:
    """Restart the failed step of a task; earlier steps keep their results."""
    for step in state.steps:
        if step.finished is not None and step.finished.counts_as_failure:
            step.phase, step.finished, step.delegated = "approved", None, None


def _apply_answer(
    state: RunState, entry: ApprovalAsked | ApprovalDecided | InputAsked | InputGiven | UserMessageAdded
) -> None:
    match entry:
        case UserMessageAdded():
            _add_message(state, entry)
        case ApprovalAsked():
            step = state.step(entry.step_id)
            step.phase, step.approval_id, step.asked = "asking", entry.approval_id, entry
            step.times_asked += 1
        case ApprovalDecided():
            step = state.step(entry.step_id)
            # A denied step leaves `asking` too: `decide` refuses it with the reason in `denied`.
            step.phase, step.is_edited_after_approval = "approved", False
            if entry.decision != "approved":
                step.denied = entry.reason or f"The approval was {entry.decision}"
            else:
                _approve(step, entry)
            if entry.decision == "approved" and entry.remember:
                state.remembered.add(build_memory_key(step.action))
        case InputAsked():
            state.question = entry
            # The step has started: it must not be chosen again before the answer.
            state.step(entry.step_id).phase = "running"
            _count_spent(state, entry.spent)
        case InputGiven():
            if state.question is None or state.question.request_id != entry.request_id:
                raise IllegalTransition(f"Nothing was asked under {entry.request_id!r}")
            step, resumes = state.step(state.question.step_id), state.question.resumes
            text = json.dumps(entry.values, ensure_ascii=False)
            state.question = None
            # The step itself asked: it runs again, with the answers.
            if resumes:
                step.phase = "approved"
                step.answers.update(entry.values)
                return
            _finish_step(state, step, StepFinished(step_id=step.step_id, status="succeeded", text=text))


def _add_message(state: RunState, entry: UserMessageAdded) -> None:
    """Append a message of the user to the results of the last turn."""
    last = state.run[-1]
    message = user(f"{_ADDED_MESSAGE}\n\n{entry.text}")
    # `is_kept`: the budget may shorten the results of this turn, but never drops the turn with the message.
    state.run[-1] = replace(last, results=(*last.results, message), is_kept=True)
    state.message_ids.add(entry.message_id)


def _approve(step: Step, entry: ApprovalDecided) -> None:
    """Set the approved state of the files: as shown, or for an edited call as of the edit."""
    if entry.edited_arguments is not None:
        step.action, step.edited = edit_arguments(step.action, entry.edited_arguments), entry.edited_arguments
        step.approved_base, step.approved_targets = entry.edited_base, entry.edited_leads_to
        step.hooked = None  # hooks must see the edited call
    elif step.asked is not None:
        step.approved_base, step.approved_targets = step.asked.base, step.asked.leads_to


def _close_turn(state: RunState) -> None:
    """Move the turn's messages and results into the history."""
    # A planned run has no replies, and its steps stay in `steps`.
    if state.reply is None:
        return
    state.closed += 1
    exchange = build_exchange(state.reply, state.steps, state.rejected, number=state.closed, skill=state.skill)
    # The model has read trimmed content again: keep it this time, or it would be trimmed and read in a loop.
    is_kept = not state.lost.isdisjoint(exchange.asked)
    state.run.append(replace(exchange, is_kept=True) if is_kept else exchange)
    state.new_pieces = frozenset()
    state.reply, state.decision, state.rejected, state.steps = None, None, (), []
