"""The next action of a run, chosen from its state alone. Pure: no I/O, no clock, no randomness."""

from itertools import takewhile
from typing import Protocol, assert_never, runtime_checkable

from metier.approval.judge import name_call
from metier.approval.profile import WRITE_ACCESS
from metier.approval.rules import ALLOW, Verdict
from metier.context.control import is_one_of_many, is_same_call, is_single
from metier.decisions import ActionStep, TaskState, describe_failure, get_owner
from metier.definitions.names import canonical_name
from metier.engine import actions as a
from metier.engine.delegation import (
    as_json,
    build_agent_request,
    build_task_result,
    get_refusal,
    is_delegation,
    render_result,
)
from metier.engine.entries.limits import Limits
from metier.engine.state.due_hooks import find_before, find_due, find_ending, find_permission, get_question
from metier.engine.state.run_state import RunState
from metier.engine.state.steps import Step, build_identity, build_memory_key
from metier.providers.options import OFFLINE
from metier.tools.effects import Effect

_MESSAGE_CHARACTERS = 300
# Do not reword these: journals contain them as reasons of questions, and a replay compares them.
_FOREIGN = "It was planned before the run came to this store"
_BEGUN = (
    "It was begun before the run came to this store, and how it ended is not known here: look whether it was done,"
    " because approving does it again"
)


class Policy(Protocol):
    """The policy of a run: permissions and limits of repetition."""

    def judge(self, action: ActionStep, *, skill: str) -> Verdict: ...

    def effect(self, action: ActionStep) -> Effect: ...


@runtime_checkable
class ToolPolicy(Protocol):
    """A policy that can evaluate a tool whose arguments are not known yet."""

    def judge_tool(self, action: ActionStep, *, skill: str) -> Verdict: ...


@runtime_checkable
class ReadPolicy(Protocol):
    """A policy with rules for reading files."""

    def get_read_denial(self, path: str, *, skill: str) -> str: ...


def get_read_denial(policy: Policy, path: str, *, skill: str = "") -> str:
    """Return why a rule denies reading a file; empty if none does."""
    return policy.get_read_denial(path, skill=skill) if isinstance(policy, ReadPolicy) else ""


def decide(state: RunState, policy: Policy) -> a.Action:
    """Return the next action. The same state always gives the same one."""
    # Hooks first, because one may end the run before its next action.
    return find_due(state) or _choose(state, policy)


def _choose(state: RunState, policy: Policy) -> a.Action:
    if state.pause is not None or state.phase in ("INIT", "DONE", "ERROR"):
        return a.Wait()
    match state.phase:
        case "LOAD_SKILL_CATALOG":
            return a.PlanTask() if is_planned(state) else a.LoadCatalog()
        case "PREFILTER_SKILLS":
            return a.RankSkills()
        case "DISCLOSE_CONTEXT_STAGE":
            return a.Disclose(state.skill, state.wanted)
        case "CALL_LLM":
            return _call_or_stop(state, get_run_limits(state))
        case "DECODE_DECISION":
            return _decode_or_fail(state)
        case "EXECUTE_STEP":
            return _next_step(state, policy)
        case "VERIFY_PROGRESS":
            return _verify(state)
        case "HANDOFF_OR_FINISH":
            return _hand_off_or_finish(state)
        case _:
            assert_never(state.phase)


def get_run_limits(state: RunState) -> Limits:
    """Return the current limits, including those that a user raised."""
    return state.limits


def is_planned(state: RunState) -> bool:
    """Return True if a task definition or another skill decides, not a model."""
    order = state.started.order if state.started is not None else None
    return order is not None and bool(order.task_id or order.call)


def _call_or_stop(state: RunState, limits: Limits) -> a.Action:
    if state.repair is not None or state.call is not None:
        # The same turn again: a repair, or a request whose reply was not recorded before a crash.
        return a.CallModel(state.turn, repair=state.repair is not None)
    # Turns of child runs count too; otherwise delegation would circumvent the limit.
    turns = state.turn + state.delegated_turns
    if turns >= limits.max_turns:
        # A replay compares messages, so runs with earlier rules keep "1 turns".
        unit = "turn" if turns == 1 and state.call_rules >= 4 else "turns"
        message = f"The run took {turns} {unit}, which is the limit"
        if limits.on_limit == "park":
            return a.PauseAtLimit("max_turns", message)
        return a.Fail("max_turns_exceeded", message, "escalated")
    return _stop_at_budget(state, limits) or a.CallModel(state.turn + 1)


def _stop_at_budget(state: RunState, limits: Limits) -> a.Fail | a.PauseAtLimit | None:
    """Stop a run that reached its budget: fail it, or pause it if its limits say so."""
    # The cost of a call is only known after it, so a run may exceed its budget by one call.
    if limits.max_cost_usd is None or state.cost_usd < limits.max_cost_usd:
        return None
    # A replay compares messages, so the amount keeps this format.
    message = f"The run cost {state.cost_usd:.4f} USD, which is over the limit"
    if limits.on_limit == "park":
        return a.PauseAtLimit("max_cost_usd", message)
    return a.Fail("budget_exceeded", message, "escalated")


def _decode_or_fail(state: RunState) -> a.Action:
    if state.repair is not None and not state.repair.repair:
        # The correction could not be decoded either, or none was possible.
        return a.Fail(_decode_reason(state.repair.reason), state.repair.message)
    return a.Decode()


def _decode_reason(reason: str) -> str:
    return reason if reason in ("refusal", "truncated") else "decision_invalid"


def _next_step(state: RunState, policy: Policy) -> a.Action:
    if state.aborted:
        return a.Fail("aborted", "A person ended the run over a step in doubt", "canceled")
    if state.question is not None:
        # The run was paused for another reason before the answer came, so it asks again.
        return a.AskInput(state.question.step_id)
    running = next((step for step in state.steps if step.phase in ("running", "in_doubt")), None)
    if running is not None:
        # A driver awaits its steps, so a step that is still running was interrupted, or waits for a child run.
        return a.AwaitChild(running.step_id) if running.delegated else a.SettleDoubt(running.step_id)
    failed = next((step for step in state.steps if step.finished and step.finished.counts_as_failure), None)
    if failed is not None:
        return _after_failure(state, failed)
    pending = [step for step in state.steps if step.phase in ("pending", "approved", "asking")]
    if state.plan:
        return _stop_at_budget(state, get_run_limits(state)) or a.Delegate(pending[0].step_id)
    return _start(state, pending, policy)


def _start(state: RunState, pending: list[Step], policy: Policy) -> a.Action:
    first = pending[0]
    verdict = _get_before_start(state, pending, policy)
    if not isinstance(verdict, Verdict):
        return verdict
    if first.action.type == "ask_user":
        return a.AskInput(first.step_id)
    if is_delegation(first.action):
        return _delegate_together(state, pending, policy)
    # The budget is checked before each turn. A planned run has no turns, so it is checked before each step.
    stop = _stop_at_budget(state, get_run_limits(state)) if is_planned(state) else None
    return stop or _run_together(state, pending, policy, verdict=verdict)


def _delegate_together(state: RunState, pending: list[Step], policy: Policy) -> a.Action:
    """Start the child runs of one call or of adjacent calls, unless one of them must be refused or approved first."""
    siblings = _list_siblings(state, pending)
    # The first one has been checked by `_start`.
    for number in range(1, len(siblings)):
        before = _get_before_start(state, siblings[number:], policy)
        if not isinstance(before, Verdict):
            return before
    return a.Delegate(siblings[0].step_id, tuple(step.step_id for step in siblings[1:]))


def _list_siblings(state: RunState, pending: list[Step]) -> list[Step]:
    """List the first step and those delegated together with it."""
    first, limits = pending[0], get_run_limits(state)
    if not is_single(first.action):
        # One call with several tasks was decoded into one step per task.
        return [step for step in pending if step is first or is_same_call(first.action, step.action)]
    siblings = list(takewhile(lambda step: _can_start_together(state, first, step), pending))
    # At most as many as one call may start and as turns are left; the others start later.
    left = limits.max_turns - state.turn - state.delegated_turns
    return siblings[: max(1, min(limits.max_children_per_call, left))] or [first]


def _can_start_together(state: RunState, first: Step, step: Step) -> bool:
    """Return True if both calls delegate one task each and the run starts such calls together."""
    is_pair = is_single(first.action) and is_single(step.action)
    return is_pair and get_run_limits(state).delegates_together


def _get_before_start(state: RunState, pending: list[Step], policy: Policy) -> a.Action | Verdict:
    """Return the action before these steps (refusal, hook or question), or the verdict that lets them run."""
    # Refusals come before hooks, and hooks before questions: no user is asked about a call that cannot run.
    first = pending[0]
    if first.denied:
        tried = f"{WRITE_ACCESS}: {first.needs_write}. " if first.needs_write else ""
        return a.RefuseStep(first.step_id, f"{tried}{first.denied}", verdict="ask")
    if state.repeated.get(build_identity(first.action), 0) >= get_run_limits(state).max_repeated_calls:
        return a.RefuseStep(
            first.step_id,
            "The same call was made before with the same result; try another way",
            "skipped",
            verdict="allow",
            rule="max_repeated_calls",
        )
    # The access file may have changed since the model was offered this tool.
    name, _ = name_call(first.action)
    if name in state.disabled:
        return a.RefuseStep(
            first.step_id, describe_disabled(state.write_tool_name(name)), verdict="deny", rule="tool-access.json"
        )
    if is_delegation(first.action) and (refusal := get_refusal(state, first.action, get_run_limits(state))):
        return a.RefuseStep(first.step_id, refusal, verdict="deny", rule="limits of delegation")
    verdict = judge_step(state, first, policy)
    if verdict.decision == "deny":
        # Even after an approval: the approver may have edited the call into a denied one.
        return _refuse(first, verdict)
    if (hook_action := find_before(state, first)) is not None:
        return hook_action
    if (question := _find_question(first, verdict)) is not None:
        also = _list_also(state, pending, policy) if first.phase == "pending" else ()
        return find_permission(state, first) or a.AskApproval(first.step_id, question, also)
    return verdict


def _list_also(state: RunState, pending: list[Step], policy: Policy) -> tuple[tuple[str, str], ...]:
    """List later calls of the reply that a user is asked about, up to one that an earlier call may change."""
    also: list[tuple[str, str]] = []
    paths = {path} if (path := _get_path(pending[0])) else set[str]()
    for step in pending[1:]:
        verdict = judge_step(state, step, policy)
        if _is_refused(state, step, verdict):
            continue  # it does not run, so it changes nothing for later calls
        if not _can_be_asked_early(state, step, pending[0]):
            break
        if (question := _find_question(step, verdict)) is None:
            continue
        # The preview of a second change to the same file is only known after the first one.
        if find_permission(state, step) is not None or (path := _get_path(step)) in paths:
            break
        also.append((step.step_id, question))
        paths |= {path} if path else set()
    return tuple(also)


def _is_refused(state: RunState, step: Step, verdict: Verdict) -> bool:
    """Return True if the call will be rejected, independently of earlier calls."""
    return bool(step.denied) or name_call(step.action)[0] in state.disabled or verdict.decision == "deny"


def _can_be_asked_early(state: RunState, step: Step, first: Step) -> bool:
    is_open = step.phase == "pending"
    is_call = step.action.type in ("call_tool", "run_command") and not is_delegation(step.action)
    if not is_open or not (
        is_call or is_same_call(first.action, step.action) or _can_start_together(state, first, step)
    ):
        return False
    # The limit of repetitions or a hook may still refuse it.
    is_repeated = build_identity(step.action) in state.repeated
    return not is_repeated and find_before(state, step) is None


def _get_path(step: Step) -> str:
    return str(name_call(step.action)[1].get("path") or "")


def _find_question(step: Step, verdict: Verdict) -> str | None:
    """Return why a user is asked about the step; None if not, or after the answer."""
    asks = verdict.decision == "ask" or step.is_foreign or bool(get_question(step))
    if step.phase != "asking" and not (step.phase == "pending" and asks):
        return None
    if step.may_be_done:
        return f"{_BEGUN}. {verdict.reason}" if verdict.reason else _BEGUN
    if step.is_foreign:
        return verdict.reason or _FOREIGN
    return verdict.reason if verdict.decision == "ask" else get_question(step)


def _refuse(step: Step, verdict: Verdict) -> a.RefuseStep:
    status = "failed" if verdict.code in ("unknown_tool", "invalid_input") else "denied"
    reason = verdict.reason or "A rule denies this call"
    return a.RefuseStep(step.step_id, reason, status, code=verdict.code, verdict="deny", rule=verdict.rule)


def judge_step(state: RunState, step: Step, policy: Policy) -> Verdict:
    """Return the policy's verdict, unless a user answered "always" in this run."""
    verdict = policy.judge(step.action, skill=state.skill)
    if verdict.read_only and step.needs_write:
        verdict = Verdict(decision="ask", reason=f"{WRITE_ACCESS}: {step.needs_write}")
    # Children that can only read change nothing, so the user is not asked about them.
    if verdict.is_child_question and _starts_reading_child(state, step):
        return ALLOW
    if verdict.decision == "ask" and build_memory_key(step.action) in state.remembered:
        return ALLOW
    return verdict


def _starts_reading_child(state: RunState, step: Step) -> bool:
    """Return True if the child run that a step starts shares the folder with others, so that it may only read."""
    if not is_one_of_many(step.action) and not is_single(step.action):
        return False
    pending = [each for each in state.steps if each.phase in ("pending", "approved", "asking")]
    siblings = _list_siblings(state, pending) if pending else []
    others = [each.action for each in siblings if each.step_id != step.step_id]
    # A step that is not among the first siblings is judged again when its turn comes.
    is_first = any(each.step_id == step.step_id for each in siblings)
    return is_first and build_agent_request(state, step.action, siblings=others).reads_only


def describe_disabled(name: str) -> str:
    return f"Tool {name!r} is turned off in 'tool-access.json'"


def _run_together(state: RunState, pending: list[Step], policy: Policy, *, verdict: Verdict) -> a.RunSteps:
    """Run the first step together with the following ones that also only read and need no answer."""
    group, verdicts = [pending[0].step_id], [verdict]
    # Only reads run concurrently: their order does not matter, and a crash may repeat them.
    if not verdict.read_only and policy.effect(pending[0].action) != "read":
        return a.RunSteps(tuple(group), tuple(verdicts))
    for step in pending[1:]:
        is_call = step.action.type in ("call_tool", "run_command")
        is_free = step.phase == "pending" and is_call and not step.is_foreign
        if not is_free or name_call(step.action)[0] in state.disabled:
            break
        verdict = judge_step(state, step, policy)
        if verdict.decision != "allow" or (not verdict.read_only and policy.effect(step.action) != "read"):
            break
        if find_before(state, step) is not None or get_question(step):
            break
        group.append(step.step_id)
        verdicts.append(verdict)
    return a.RunSteps(tuple(group), tuple(verdicts))


def _after_failure(state: RunState, failed: Step) -> a.Action:
    """Retry once, then report the failure or hand over, then fail the run, as `on_step_failure` allows."""
    policy = get_run_limits(state).on_step_failure
    assert failed.finished is not None
    text = describe_failure(failed.finished.text).strip()
    message = text.splitlines()[0][:_MESSAGE_CHARACTERS] if text else "no output"
    if state.plan:
        # Later steps of a task need this result, so a user decides about a failure.
        file = state.plan[state.steps.index(failed)].file
        return a.StopAtStep(failed.step_id, f"Step {file!r} failed: {message}")
    was_told = build_identity(failed.action) in state.told_failures
    # A failure that the model has already read ends the run, or the same call could fail in a loop.
    # Policies are named after their reactions, such as `retry_once_then_fallback_then_abort`.
    if "retry_once" in policy and failed.finished.retryable and not failed.failed_once and not was_told:
        return a.RetryStep(failed.step_id, failed.finished.error_type or "failed")
    if "fallback" in policy and not was_told and not is_planned(state):
        return _tell_or_hand_over(state, failed, message)
    status: TaskState = failed.finished.outcome or ("timeout" if failed.finished.status == "timeout" else "failed")
    return a.Fail("step_failed", f"Step {failed.step_id} failed: {message}", status)


def _tell_or_hand_over(state: RunState, failed: Step, message: str) -> a.Action:
    """Report the error to the model; without a model, hand over to the next suitable candidate."""
    others = list_fallbacks(state)
    is_offline = state.started is not None and state.started.provider == OFFLINE
    if is_offline and others and not state.fell_back:
        return a.HandOff(others[0], f"Step {failed.step_id} failed: {message}", fallback=True)
    return a.TellFailure(failed.step_id, others)


def list_fallbacks(state: RunState) -> tuple[str, ...]:
    """List suitable candidates that were not in charge yet, best first."""
    tried = {canonical_name(name) for name in (*state.used_skills, *(get_owner(step.action) for step in state.steps))}
    return tuple(
        candidate.skill_name
        for candidate in state.candidates
        if candidate.score >= state.min_score and canonical_name(candidate.skill_name) not in tried
    )


def _verify(state: RunState) -> a.Action:
    """Choose the phase after the turn's steps."""
    if is_planned(state):
        return a.Proceed("HANDOFF_OR_FINISH", "Every step of the task is through")
    if state.next_skill:
        return a.Proceed("HANDOFF_OR_FINISH", f"Skill {state.next_skill!r} was called")
    if find_finish(state) is not None:
        return a.Proceed("HANDOFF_OR_FINISH", "The model finished")
    if state.wanted or state.needs_overview:
        return a.Proceed("DISCLOSE_CONTEXT_STAGE", "More of the skill is needed")
    return a.Proceed("CALL_LLM")


def _hand_off_or_finish(state: RunState) -> a.Action:
    if state.next_skill:
        reason = next(
            (str(s.action.params.get("reason") or "") for s in state.steps if s.action.type == "call_skill"), ""
        )
        return a.HandOff(state.next_skill, reason or "The model called the next skill")
    if state.plan:
        return a.Finish(build_task_result(state))
    if is_planned(state):
        return _end_call(state.steps[-1])
    finish = find_finish(state)
    assert finish is not None, "a run comes here to finish or to hand off"
    order = state.started.order if state.started is not None else None
    wants_json = order is not None and order.output_schema is not None
    action = _check_or_finish(state, render_result(finish.action.params.get("result", ""), wants_json=wants_json))
    # Hooks see only a result that passed its checks: they must not approve one that the model still has to correct.
    return find_ending(state) or action if isinstance(action, a.Finish) else action


def _end_call(step: Step) -> a.Action:
    """Finish a run that only calls a skill with the skill's result."""
    assert step.finished is not None
    text = step.finished.text
    if not step.finished.is_error:
        return a.Finish(text)
    return a.Fail("skill_failed", describe_failure(text)[:_MESSAGE_CHARACTERS], step.finished.outcome or "failed")


def _check_or_finish(state: RunState, result: str) -> a.Action:
    """Check the result against the request before the run finishes with it."""
    short = state.reply.shortfall if state.reply is not None else None
    if short is not None:
        return a.Fail(short.reason, short.message, short.status, result)
    order = state.started.order if state.started is not None else None
    if order is None or not order.checks_result or state.is_dry_run:
        return a.Finish(result)
    if state.accepted:
        # A step of a task keeps its result as it is; a single run with an output schema returns plain JSON.
        return a.Finish(result if order.step_of or order.output_schema is None else as_json(result))
    if state.unaccepted is not None and not state.unaccepted.repair:
        return a.Fail("not_accepted", f"The result was not accepted: {'; '.join(state.unaccepted.failures)[:300]}")
    return a.CheckResult(result)


def find_finish(state: RunState) -> Step | None:
    """Return the step that ends the run, if all steps with it succeeded."""
    # Runs of older versions did not end with a reply that had a second `finish`, and a replay must agree.
    ignored = [no for no in state.rejected if get_run_limits(state).ends_at_first_finish and no.tool == "finish"]
    if len(ignored) < len(state.rejected) or any(step.finished and step.finished.is_error for step in state.steps):
        return None
    return next((step for step in state.steps if step.action.type == "finish"), None)
