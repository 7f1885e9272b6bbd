"""Approval requests: the exact call, its hash, its preview, its reason, its expiry."""

import hashlib
import json
from datetime import timedelta

from msgspec import Struct
from pydantic import JsonValue

from metier.approval.judge import name_call
from metier.approval.narrowed_policy import is_reading_command
from metier.decisions import ActionStep
from metier.engine import actions as a
from metier.engine.entries.question import ApprovalAsked
from metier.engine.entries.run import RunPaused
from metier.engine.execution.judged_paths import get_question, render_link_targets, resolve_links
from metier.engine.execution.step_execution import build_finished
from metier.engine.journal import RunLog
from metier.engine.redaction import redact
from metier.engine.services import Services
from metier.engine.state.steps import Step
from metier.store.base import ApprovalRow
from metier.tools.base import Preview, Tool, ToolContext

MAX_PREVIEW_CHARACTERS = 20_000


class CallSnapshot(Struct, frozen=True):
    """A call's preview and link targets at this moment."""

    base: str = ""
    leads_to: tuple[str, ...] = ()
    preview: str = ""
    """The expected change, not yet redacted."""


async def ask_approval(action: a.AskApproval, log: RunLog, services: Services) -> None:
    """Pause until the approver has decided about this call and the others of the reply that need an approval."""
    step = log.state.step(action.step_id)
    if step.phase == "asking":
        # Resumed before the decision: the question stays the same, so an answer on its way still counts.
        await log.record(RunPaused(pause="approval", reason=f"Approval {step.approval_id} is open"))
        return
    preview = await _preview(step, log, services)
    if preview is not None and preview.failure is not None and await _may_read(step, log, services):
        # No user is asked about a call that cannot succeed. It does not run either: the files could change before.
        name, _ = name_call(step.action)
        await log.record(await build_finished(step, name, preview.failure, duration_ms=0, services=services))
        return
    requests = [await _build_request(step, log, services, reason=action.reason, preview=preview)]
    for later, reason in [(log.state.step(step_id), reason) for step_id, reason in action.also]:
        preview = await _preview(later, log, services)
        # An earlier call may make a later one possible, which is asked about when its turn comes.
        if preview is None or preview.failure is None:
            requests.append(await _build_request(later, log, services, reason=reason, preview=preview))
    # The rows before the entries: if the process is killed in between, the repeated step finds them and adds the
    # entries. Everything slow is done before, because an approval without an entry can't be shown.
    for row, _ in requests:
        await services.store.put_approval(log.lease, row)
    asked = [entry for _, entry in requests]
    ids = ", ".join(each.approval_id for each in asked)
    reason = f"Approval {ids} is open" if len(asked) == 1 else f"Approvals {ids} are open"
    await log.record(*asked, RunPaused(pause="approval", reason=reason))


async def _may_read(step: Step, log: RunLog, services: Services) -> bool:
    """Return True if the run may read the call's file unasked: a failed preview can quote it to the model."""
    _, arguments = name_call(step.action)
    targets = await resolve_links(step, services)
    paths = [path for path in (arguments.get("path"), *targets.values()) if isinstance(path, str)]
    reads = [ActionStep(type="call_tool", params={"tool": "Read", "arguments": {"path": path}}) for path in paths]
    return all(services.policy.judge(read, skill=log.state.skill).decision == "allow" for read in reads)


async def _build_request(
    step: Step, log: RunLog, services: Services, *, reason: str, preview: Preview | None
) -> tuple[ApprovalRow, ApprovalAsked]:
    name, arguments = name_call(step.action)
    payload = render_call(name, arguments)
    # The nonce makes IDs in an adopted run unpredictable, so that they cannot have been answered before.
    approval_id = build_approval_id(log.state.run_id, step.step_id, times_asked=step.times_asked, nonce=log.state.nonce)
    now = services.clock.now()
    expires = now + timedelta(hours=services.runtime.approval_expiry_hours)
    row = ApprovalRow(
        approval_id=approval_id,
        run_id=log.state.run_id,
        step_id=step.step_id,
        payload=payload,
        created_at=now,
        expires_at=expires,
    )
    targets = await resolve_links(step, services)
    shown = render_link_targets(targets) + (preview.text if preview else "")
    # The schema is part of the entry: arguments can be edited in any process, without the tool.
    tool = services.tools.find(name)
    entry = ApprovalAsked(
        approval_id=approval_id,
        step_id=step.step_id,
        arguments_hash=bind_approval(payload),
        reason=reason,
        expires_at=expires.isoformat(),
        justification=log.state.decision.reasoning_summary if log.state.decision else "",
        # Redacted before it is truncated: half of a secret matches no pattern.
        preview=redact(shown, services)[:MAX_PREVIEW_CHARACTERS],
        base=preview.base if preview else "",
        leads_to=tuple(targets.values()),
        input_schema=tool.info.input_schema if tool else {},
        risk=_get_risk(step, tool, services),
    )
    return row, entry


def _get_risk(step: Step, tool: Tool | None, services: Services) -> str:
    """Return the tool's risk. A command that is known to only read has a low one, unless it asked for write access."""
    if tool is None:
        return ""
    effect = services.policy.effect(step.action)
    is_command = effect != "read" and not step.needs_write
    is_low = is_command and is_reading_command(step.action, root=str(services.workspace))
    return "low" if is_low else tool.info.risk


async def ask_again(action: a.RunSteps, log: RunLog, services: Services) -> bool:
    """Ask again if the files of an approved step changed, or if its links lead to files that need an approval."""
    for step in (log.state.step(step_id) for step_id in action.step_ids):
        reason = await get_question(step, log.state, services)
        if step.phase == "approved" and await _is_stale(step, log, services):
            reason = "A file that it changes or runs was changed since"
        if reason:
            # One at a time: the other steps are checked again when the run continues.
            await ask_approval(a.AskApproval(step.step_id, reason), log, services)
            return True
    return False


def render_call(tool: str, arguments: dict[str, JsonValue]) -> bytes:
    """Render the exact call in canonical form. The approval is for these bytes."""
    return json.dumps({"arguments": arguments, "tool": tool}, sort_keys=True, separators=(",", ":")).encode()


def render_edited_call(tool: str, arguments: dict[str, JsonValue], found: CallSnapshot) -> bytes:
    """Render a call that the approver edited, with the file state and link targets at that time."""
    call: JsonValue = {"arguments": arguments, "base": found.base, "leads_to": list(found.leads_to), "tool": tool}
    return json.dumps(call, sort_keys=True, separators=(",", ":")).encode()


def bind_approval(payload: bytes) -> str:
    """Return the hash that binds an approval to its call: it holds for these arguments and no others."""
    return hashlib.sha256(payload).hexdigest()


def build_approval_id(run_id: str, step_id: str, *, times_asked: int, nonce: str = "") -> str:
    """Build the ID of a question. It is the same when the question is repeated after a crash."""
    words = f"{run_id}/{step_id}/{times_asked}" + (f"/{nonce}" if nonce else "")
    # 48 bits, so that a user can type it. The store rejects another call under an ID that is taken.
    return f"ap-{hashlib.sha256(words.encode()).hexdigest()[:12]}"


async def _is_stale(step: Step, log: RunLog, services: Services) -> bool:
    if not step.approved_base:
        return False
    preview = await _preview(step, log, services)
    # Without a preview, nothing shows that the file is still the one that the approver saw.
    return preview is None or preview.base != step.approved_base


async def _preview(step: Step, log: RunLog, services: Services) -> Preview | None:
    context = ToolContext(
        workspace=services.workspace,
        run_id=log.state.run_id,
        step_id=step.step_id,
        timeout_seconds=services.runtime.timeout_seconds,
        buffers=services.buffers,
    )
    return await services.tools.preview(*name_call(step.action), context)
