"""Run the steps of a turn: intent, effect, result. Each is recorded before the next one."""

import errno
import hashlib
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import cast

import anyio
from msgspec.structs import replace
from pydantic import JsonValue

from metier.approval.judge import name_call
from metier.approval.rules import ALLOW, Verdict
from metier.context.control import PLAN
from metier.context.disclosure import disclose_files
from metier.decisions import StepStatus, TaskState, answers_in_json, describe_failure, get_owner, write_failure
from metier.definitions.files.contained_path import read_contained
from metier.engine import actions as a
from metier.engine.decide import get_read_denial, judge_step
from metier.engine.delegation import build_call_request, wait_for
from metier.engine.entries.question import InputAsked
from metier.engine.entries.run import RunPaused
from metier.engine.entries.step import FailureTold, SpoolIdentity, StepFinished, StepRetried, StepStarted
from metier.engine.entries.task import ChildRequested
from metier.engine.execution.file_changes import add_changes, end_if_changed, record_before, snapshot_protected
from metier.engine.execution.judged_paths import build_guard
from metier.engine.execution.past_results import update_results
from metier.engine.journal import RunLog
from metier.engine.model.media import store_media
from metier.engine.model.skill_selection import get_disclosure_limits
from metier.engine.nearby_instructions import add_nearby
from metier.engine.redaction import redact
from metier.engine.services import Services
from metier.engine.state.steps import Step, read_plan
from metier.errors import unwrapped
from metier.events.payload import Payload
from metier.events.skill import SkillDisclosureLoaded
from metier.events.step import SkillStepExecuted
from metier.messages import Spent
from metier.routing.prefilter import rank_skills
from metier.skills.package import SkillPackage
from metier.store.failures import StoreFull
from metier.telemetry.excerpt import cut_middle
from metier.tools.base import Question, ToolContext, ToolResult
from metier.tools.effects import REPEATABLE
from metier.tools.process.spool import is_lost, take_identity
from metier.tools.toolbox import Toolbox

MAX_RESULT_CHARACTERS = 30_000
"""Maximum length of a result for the model. A longer one is a blob, and the model gets its start and end."""
SUMMARY_CHARACTERS = 500
FAILURES_OF_SKILLS = frozenset({"timeout", "execution_failed"})
"""Error codes of a script or toolset that ran and failed; the failure policy applies to them."""
TRANSIENT = "execution_failed"
# By convention of the shell and of argparse.
USAGE_ERROR = 2
"""Exit code of a program that was called with invalid arguments."""
POLICY_TOOLS = frozenset({"script_run"})
SPOOL = "spool"
"""Folder of a run where effects record their start and end."""
_OUTCOMES: dict[str, TaskState] = {"timeout": "timeout", "blocked": "blocked", "escalated": "escalated"}
_MAX_ARTIFACT_BYTES = 1 << 30
"""Maximum size of a file that a script lists as an artifact."""

type _Result = StepFinished | StepRetried | InputAsked | ChildRequested


async def run_steps(action: a.RunSteps, log: RunLog, services: Services) -> None:
    """Run steps: first the intents, then the effects, then the results in call order."""
    verdicts = action.verdicts or (ALLOW,) * len(action.step_ids)
    may_write = [
        log.state.step(step_id)
        for step_id, verdict in zip(action.step_ids, verdicts, strict=True)
        if not verdict.read_only
    ]
    # Before the intents, which contain it: after a crash, the intent alone must be enough to undo the step.
    before = await record_before(may_write, services)
    steps = await record_intents(action, log, services, identify=identify_spool, before=before)
    # A step that started in entries that the journal lost gets no result here; `recovery` asks about it.
    if ready := [step for step in steps if not is_lost(name_spool(step, services.run_folder))]:
        await finish_steps(ready, log, services)


async def record_intents(
    action: a.RunSteps,
    log: RunLog,
    services: Services,
    *,
    identify: Callable[[Services], SpoolIdentity] | None = None,
    before: Mapping[str, JsonValue] | None = None,
) -> list[Step]:
    """Record the intents, synced if an effect can't be repeated.

    `identify` names the spool folder for such effects, and `before` is the state of the files. A replay has neither.
    """
    steps = [log.state.step(step_id) for step_id in action.step_ids]
    noted = before or {}
    verdicts = action.verdicts or (None,) * len(steps)
    intents = [
        build_intent(step, log, services, verdict=verdict) for step, verdict in zip(steps, verdicts, strict=True)
    ]
    if noted:
        intents = [replace(intent, before=noted.get(intent.step_id)) for intent in intents]
    if identify is not None and any(intent.effect not in REPEATABLE for intent in intents):
        spool = identify(services)
        intents = [intent if intent.effect in REPEATABLE else replace(intent, spool=spool) for intent in intents]
    await log.record(*intents)
    return steps


async def finish_steps(steps: list[Step], log: RunLog, services: Services) -> None:
    """Execute steps whose intent is recorded."""
    await update_results(log.state.run_id, [step.action for step in steps], services)
    before = await snapshot_protected(steps, services)
    started = services.clock.monotonic()
    results: list[_Result | None] = [None] * len(steps)
    outputs: dict[str, str] = {}

    async def run(index: int, step: Step) -> None:
        results[index] = await _execute(step, log, services, outputs=outputs)

    try:
        if len(steps) == 1:  # the common case: a task group would cost as much as the tool
            await run(0, steps[0])
        else:
            with unwrapped():
                async with anyio.create_task_group() as group:
                    for index, step in enumerate(steps):
                        group.start_soon(run, index, step)
    except anyio.get_cancelled_exc_class():
        # Shielded: without a recorded result, recovery would treat the steps as interrupted with unknown outcome.
        with anyio.CancelScope(shield=True):
            duration = round((services.clock.monotonic() - started) * 1000, 3)
            ended = [
                result
                if isinstance(result, StepFinished)
                else _interrupted(step, redact(outputs.get(step.step_id, ""), services), duration_ms=duration)
                for result, step in zip(results, steps, strict=True)
            ]
            await log.record(
                *[await add_changes(each, step, services) for each, step in zip(ended, steps, strict=True)]
            )
            await end_if_changed(before, log, services)
        raise
    ended = [(result, step) for result, step in zip(results, steps, strict=True) if isinstance(result, StepFinished)]
    finished = [await add_changes(result, step, services) for result, step in ended]
    refused = [result for result in results if isinstance(result, StepRetried)]
    # One write, in the order of the calls, so that the journal doesn't depend on which step was faster.
    await log.record(*add_nearby(finished, steps, log, nearby=services.nearby), *refused)
    # After the results, which must be recorded even if the run ends here.
    if await end_if_changed(before, log, services):
        return
    if waiting := [result for result in results if isinstance(result, InputAsked | ChildRequested)]:
        await _record_wait(waiting, log)


async def _record_wait(waiting: Sequence[InputAsked | ChildRequested], log: RunLog) -> None:
    """Record the first wait, with the cost of all. Other waiting steps ask again when the run continues."""
    first = replace(waiting[0], spent=_add_spent([each.spent for each in waiting]))
    if isinstance(first, InputAsked):
        await log.record(first, RunPaused(pause="input", reason=first.question))
    else:
        await log.record(first, wait_for(first.child_run_id))


def _add_spent(parts: Iterable[Spent | None]) -> Spent | None:
    known = [part for part in parts if part is not None]
    if not known:
        return None
    return Spent(
        input_tokens=sum(part.input_tokens for part in known),
        output_tokens=sum(part.output_tokens for part in known),
        cost_usd=sum(part.cost_usd for part in known),
    )


def _interrupted(step: Step, output: str, *, duration_ms: float) -> StepFinished:
    """Build the result of a step that was cancelled. `output` is its output so far."""
    bounded = cut_middle(output, MAX_RESULT_CHARACTERS)
    shown = f"; its output so far:\n{bounded}" if bounded else ""
    return StepFinished(
        step_id=step.step_id,
        status="failed",
        text=f"Stopped before it ended, after {duration_ms / 1000:.1f} s; it may have done part of its work{shown}",
        stdout_summary=bounded[:SUMMARY_CHARACTERS],
        truncated=bounded is not output,
        is_error=True,
        error_type="interrupted",
        duration_ms=duration_ms,
    )


async def refuse_step(action: a.RefuseStep, log: RunLog, services: Services) -> None:
    step = log.state.step(action.step_id)
    name, _ = name_call(step.action)
    text = f"Not run: {action.reason}"
    # Runs of older versions keep their plain text, which a replay compares.
    if log.state.has_current_call_rules or answers_in_json(name):
        text = write_failure(action.code or "permission_denied", text)
    await log.record(
        StepFinished(
            step_id=step.step_id,
            status=action.status,
            text=text,
            is_error=True,
            error_type=action.code or action.status,
            verdict=action.verdict,
            rule=name_rule(action.rule, services),
        )
    )


async def tell_failure(action: a.TellFailure, log: RunLog) -> None:
    await log.record(FailureTold(step_id=action.step_id, candidates=action.candidates))


async def retry_step(action: a.RetryStep, log: RunLog) -> None:
    await log.record(StepRetried(step_id=action.step_id, reason=action.reason))


async def ask_input(action: a.AskInput, log: RunLog) -> None:
    if (open_question := log.state.question) is not None:
        # Already asked: the run was paused for another reason in between.
        await log.record(RunPaused(pause="input", reason=open_question.question))
        return
    step = log.state.step(action.step_id)
    question = str(step.action.params.get("question", ""))
    asked = InputAsked(
        request_id=f"in-{step.step_id}",
        step_id=step.step_id,
        question=question,
        fields=step.action.params.get("fields"),
    )
    await log.record(asked, RunPaused(pause="input", reason=question))


def build_intent(step: Step, log: RunLog, services: Services, *, verdict: Verdict | None = None) -> StepStarted:
    """Build the intent. `verdict` is the policy's decision if it is already known."""
    if log.state.plan:
        verdict = ALLOW  # the user who started the task approved its steps
    verdict = verdict or judge_step(log.state, step, services.policy)
    return StepStarted(
        step_id=step.step_id,
        attempt=step.attempts + 1,
        action=step.action,
        effect="read" if verdict.read_only else services.policy.effect(step.action),
        idempotency_key=build_key(log.state.run_id, step.step_id),
        verdict=verdict.decision,
        rule=name_rule(verdict.rule, services),
        read_only=verdict.read_only,
    )


def name_rule(rule: str, services: Services) -> str:
    """Return the rule's name without the workspace's path."""
    return rule.replace(f"{services.workspace}/", "")


def build_key(run_id: str, step_id: str) -> str:
    """Build the idempotency key, which is the same for every repetition of the step."""
    return hashlib.sha256(f"{run_id}/{step_id}".encode()).hexdigest()[:32]


async def _execute(step: Step, log: RunLog, services: Services, *, outputs: dict[str, str]) -> _Result:
    """Carry out one step. If it is cancelled, `outputs` has its output so far."""
    control: dict[str, Callable[[Step, RunLog, Services], Awaitable[ToolResult]]] = {
        "use_skill": _use_skill,
        "read_skill_files": _read_skill_files,
        "skill_search": _search_skills,
        PLAN: _note_plan,
    }
    name, arguments = name_call(step.action)
    if step.action.type == "call_skill" and services.tools.find(name) is None:
        # The skill has no code to call, so its instructions apply.
        name = "use_skill"
    events: list[Payload] = []
    started = services.clock.monotonic()
    # Rules that were added after the start apply at once, even to approved calls.
    if denial := services.find_new_denial(step.action):
        result = ToolResult(ok=False, error=denial, meta={"code": "permission_denied"})
    elif name in control:
        result = await control[name](step, log, services)
    else:

        def keep_partial(text: str) -> None:
            outputs[step.step_id] = text

        show = partial(services.show_output, step.step_id) if services.show_output is not None else None
        context = build_context(step, log, services, emit=events.append)
        context = replace(context, keep_partial=keep_partial, show_output=show)
        if step.started is not None and step.started.effect not in REPEATABLE:
            await log.check_lease()
        shown_as = log.state.write_tool_name(name)
        result = await services.tools.call(name, arguments, context, shown_as=shown_as)
    if (wait := _find_wait(step, result, log, services=services)) is not None:
        return wait
    duration = round((services.clock.monotonic() - started) * 1000, 3)
    finished = await build_finished(step, name, result, duration_ms=duration, services=services)
    for payload in events:
        if not isinstance(payload, SkillStepExecuted):
            log.emit(payload)
    return _add_facts(finished, events, services)


def _find_wait(
    step: Step, result: ToolResult, log: RunLog, *, services: Services
) -> StepRetried | InputAsked | ChildRequested | None:
    """Return the entry of a call that waits for write access, an answer or a child run; None if the result is final."""
    if result.is_final:
        return None
    result = redact(result, services)
    if result.wants_write:
        return StepRetried(step_id=step.step_id, reason=result.wants_write, wants_write=True)
    if result.question is not None:
        return replace(_build_question(step, result.question), spent=result.spent)
    if (work := result.handed_on) is not None:
        order = build_call_request(log.state, work.call)
        return ChildRequested(step_id=step.step_id, child_run_id=work.run_id, order=order, spent=result.spent)
    return None


def _build_question(step: Step, question: Question) -> InputAsked:
    return InputAsked(
        request_id=f"in-{step.step_id}-{step.attempts}",
        step_id=step.step_id,
        question=question.text,
        fields=question.fields,
        resumes=True,
    )


def _add_facts(finished: StepFinished, events: list[Payload], services: Services) -> StepFinished:
    """Add facts about the tool's process: exit code, sizes, and the output of a failed one."""
    facts = next((payload for payload in events if isinstance(payload, SkillStepExecuted)), None)
    if facts is None:
        return finished
    names = ("exit_code", "stdout_bytes", "stderr_bytes", "truncated", "script")
    known = {name: getattr(facts, name) for name in names}
    if finished.is_error:
        # The model reads both streams as one text; the event log separates them.
        facts = redact(facts, services)
        summaries = {"stdout_summary": facts.stdout_summary, "stderr_summary": facts.stderr_summary}
        known |= {name: text for name, text in summaries.items() if text}
    return replace(finished, **known)


def build_context(
    step: Step, log: RunLog, services: Services, *, emit: Callable[[Payload], None] = lambda _: None
) -> ToolContext:
    return ToolContext(
        workspace=services.workspace,
        run_id=log.state.run_id,
        step_id=step.step_id,
        idempotency_key=build_key(log.state.run_id, step.step_id),
        timeout_seconds=services.runtime.timeout_seconds,
        emit=emit,
        spool=get_spool_path(step, services),
        attempt=max(1, step.attempts),
        answers=step.answers,
        artifacts=services.run_folder / "artifacts",
        # For output that a tool saves or truncates itself; the result is redacted again.
        clean=services.redact,
        trace_parent=log.get_context(step.step_id),
        base_hash=step.approved_base or None,
        paths=build_guard(step, log.state, services),
        buffers=services.buffers,
        read_only=step.started is not None and step.started.read_only,
    )


def get_spool_path(step: Step, services: Services) -> Path:
    """Return the path of an attempt's spool in a folder that exists."""
    _make_spool_folder(services)
    return name_spool(step, services.run_folder)


def name_spool(step: Step, run_folder: Path) -> Path:
    """Return the spool of this attempt. Notes of an earlier attempt must not count for it."""
    return run_folder.joinpath(SPOOL, f"{step.step_id}-{step.attempts}")


def identify_spool(services: Services) -> SpoolIdentity:
    """Identify the spool folder. Raises `StoreFull`; nothing has started then."""
    machine = services.machine
    try:
        folder = take_identity(_make_spool_folder(services))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(
                "The disk of the run's folder is full", hint="Free some space, then resume the run"
            ) from error
        raise
    return SpoolIdentity(machine=machine.machine, boot=machine.boot, folder=folder)


def _make_spool_folder(services: Services) -> Path:
    folder = services.run_folder / SPOOL
    folder.mkdir(parents=True, exist_ok=True)
    return folder


async def build_finished(
    step: Step, name: str, result: ToolResult, *, duration_ms: float, services: Services
) -> StepFinished:
    """Build the recorded result: redacted, bounded, and classified by the failure policy."""
    redacted = redact(result, services)
    text = _render_result(name, redacted, has_fields=isinstance(result.output, dict))
    bounded = text if result.is_limited else cut_middle(text, MAX_RESULT_CHARACTERS)
    # `cut_middle` returns the same object if nothing has to be cut.
    is_truncated = bounded is not text
    # The blob before the entry that refers to it.
    digest = await services.store.put_blob(text.encode("utf-8", "surrogatepass")) if is_truncated else ""
    code = str(result.meta.get("code", "")) if not result.ok else ""
    status: StepStatus = "succeeded" if result.ok else "timeout" if code == "timeout" else "failed"
    if code == "permission_denied":
        status = "denied"
    is_skill_failure = code in FAILURES_OF_SKILLS and is_work_of_skill(name, services.tools)
    state = str(result.meta.get("state", ""))
    return StepFinished(
        step_id=step.step_id,
        status=status,
        text=bounded,
        is_error=not result.ok,
        stdout_summary=bounded[:SUMMARY_CHARACTERS] if result.ok else "",
        stderr_summary=_summarize_error(describe_failure(bounded)) if not result.ok else "",
        duration_ms=duration_ms,
        error_type=code,
        truncated=is_truncated,
        digest=digest,
        retryable=is_skill_failure and is_worth_repeating(step, result),
        counts_as_failure=is_skill_failure,
        artifacts=_artifacts(result, services),
        media=await store_media(services.store, result.media),
        spent=result.spent,
        outcome=_OUTCOMES.get(state) if not result.ok else None,
        skill_name=str(result.meta.get("skill") or get_owner(step.action)),
        diff=diff if isinstance(diff := redacted.meta.get("diff"), str) else None,
    )


def is_worth_repeating(step: Step, result: ToolResult) -> bool:
    """Return True for a transient failure of a call that is safe to repeat.

    A timeout has used up its time, and an invalid call stays invalid: the model reads both instead.
    """
    is_safe = step.started is not None and step.started.effect in REPEATABLE
    # The tool does not know a script's effects; the skill may declare that there are none.
    is_safe = is_safe or result.meta.get("repeatable") is True
    return is_safe and result.meta.get("code") == TRANSIENT and result.meta.get("exit_code") != USAGE_ERROR


def is_work_of_skill(name: str, tools: Toolbox) -> bool:
    """Return True for scripts, toolsets and callable skills, which the failure policy applies to."""
    tool = tools.find(name)
    # Names are ambiguous, IDs are not: `a/b.c` may belong to the skill `a/b` or to the MCP server `a`.
    of_skill = tool.info.id.startswith(("skill:", "capability:")) if tool else "." in name and "/" not in name
    return name in POLICY_TOOLS or of_skill


async def _use_skill(step: Step, _log: RunLog, services: Services) -> ToolResult:
    name = str(step.action.params.get("skill", ""))
    package = services.skill_index.find(name)
    if package is None:
        return ToolResult(ok=False, error=f"There is no skill {name!r}", meta={"code": "not_found"})
    return ToolResult(
        ok=True, output=f"Skill {package.definition.name!r} is in charge; its content is in front of you."
    )


async def _read_skill_files(step: Step, log: RunLog, services: Services) -> ToolResult:
    _, arguments = name_call(step.action)
    package = services.skill_index.find(log.state.skill) if log.state.skill else None
    if package is None:
        return ToolResult(ok=False, error="No skill is in charge; call use_skill first", meta={"code": "no_skill"})
    paths = [str(path) for path in cast("list[JsonValue]", arguments.get("paths") or [])]  # checked by the schema
    skill = services.skill_index.text(log.state.skill)
    denied = {path: reason for path in paths if (reason := _get_denial(path, package, log=log, services=services))}
    disclosure = disclose_files(
        skill,
        [path for path in paths if path not in denied],
        read=services.skill_index.reader(log.state.skill),
        limits=get_disclosure_limits(services),
    )
    refused = (*disclosure.refused, *(f"{path}: {reason}" for path, reason in denied.items()))
    log.emit(
        SkillDisclosureLoaded(
            skill_name=skill.name,
            stage=2,
            files=disclosure.files,
            total_bytes=sum(file.bytes for file in disclosure.files),
            total_tokens=sum(file.tokens for file in disclosure.files),
            refused=refused,
        )
    )
    texts = [piece.text for piece in disclosure.pieces] + [f"Not given: {reason}" for reason in refused]
    return ToolResult(ok=bool(disclosure.pieces), output="\n\n".join(texts), error="\n".join(texts), is_limited=True)


def _get_denial(path: str, package: SkillPackage, *, log: RunLog, services: Services) -> str:
    """Return why a rule denies reading a skill's file in the workspace."""
    file = package.definition.folder / path.partition("#")[0]
    # A rule may name a link or the file behind it.
    names = dict.fromkeys((os.path.normpath(file), os.path.realpath(file)))
    inside = [name for name in names if Path(name).is_relative_to(services.workspace)]
    found = (get_read_denial(services.policy, name, skill=log.state.skill) for name in inside)
    return next(filter(None, found), "")


async def _search_skills(step: Step, _log: RunLog, services: Services) -> ToolResult:
    _, arguments = name_call(step.action)
    query = str(arguments.get("query", ""))
    near = await services.skill_index.get_similar(query)
    found = rank_skills(services.skill_index.index, query, count=services.skills.prefilter_top_k, similar=near.ranked)
    lines = [f"- {name}: {text}" for name, text in services.skill_index.describe([hit.skill_name for hit in found])]
    return ToolResult(ok=True, output="\n".join(lines) or "No skill matches these words")


async def _note_plan(step: Step, _log: RunLog, _services: Services) -> ToolResult:
    """Confirm a plan. The call itself records it."""
    steps = read_plan(step.action)
    under_way = [each.step for each in steps if each.status == "in_progress"]
    done = sum(each.status == "done" for each in steps)
    now = f"; in progress: {under_way[0]}" if under_way else ""
    hint = " Keep only one step in progress." if len(under_way) > 1 else ""
    return ToolResult(ok=True, output=f"Noted: {done} of {len(steps)} steps done{now}.{hint}")


def _summarize_error(text: str) -> str:
    """Shorten an error to its start, which names the failed part, and its end, which has the reason."""
    if len(text) <= SUMMARY_CHARACTERS:
        return text
    mark = "\n[…]\n"
    # Errors have their reason at the end, so the end gets most of the space.
    head = SUMMARY_CHARACTERS // 5
    return text[:head] + mark + text[head + len(mark) - SUMMARY_CHARACTERS :]


def _render_result(name: str, result: ToolResult, *, has_fields: bool) -> str:
    """Render a redacted result for the model. Tools that answer in JSON get their plain errors wrapped in it."""
    if result.ok or has_fields:
        return str(result.output)
    code = str(result.meta.get("code") or "execution_failed")
    return write_failure(code, result.error) if answers_in_json(name) else result.error


def _artifacts(result: ToolResult, services: Services) -> tuple[dict[str, JsonValue], ...]:
    """List the step's files: those that the tool stored, and those that a script reports, with their current hash."""
    stored = result.meta.get("artifacts")
    named = result.output.get("result") if isinstance(result.output, dict) else None
    paths = named.get("artifacts") if isinstance(named, dict) else None
    found = [artifact for artifact in stored if isinstance(artifact, dict)] if isinstance(stored, list) else []
    for path in paths if isinstance(paths, list) else []:
        file = services.workspace / str(path)
        # A sandboxed script must not make the agent read files outside the workspace.
        with suppress(OSError):
            data = read_contained(file, within=services.workspace, limit=_MAX_ARTIFACT_BYTES)
            if len(data) <= _MAX_ARTIFACT_BYTES:
                found.append({"path": str(file), "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)})
    return tuple(found)
