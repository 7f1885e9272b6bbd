"""`agent approvals`, `agent approve` and `agent deny`: list, show and decide pending calls."""

from typing import Annotated

import anyio
import typer
from pydantic import JsonValue

from metier.cli.list_approvals import app as listing
from metier.cli.run.approval_dialog import describe, describe_edit, explain, parse_arguments
from metier.cli.run.driver import View
from metier.cli.run.resume import resume_run
from metier.cli.shared.command_options import AsJson, Config, build_group, get_server_url
from metier.cli.shared.open_host import open_host
from metier.cli.shared.open_runs import open_runs
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.errors import UsageError
from metier.ids import get_user
from metier.runtime.approval_questions import ApprovalQuestion, Reply
from metier.runtime.documents import approval_as_json, attempt_as_json
from metier.runtime.run_access import ContinuedRun
from metier.store.base import ApprovalAttempt

app = build_group("List and show approvals.")

app.registered_commands += listing.registered_commands

ApprovalName = Annotated[str, typer.Argument(help="Approval ID, a prefix of it, or `latest`.")]
Reason = Annotated[str, typer.Option("--reason", help="Reason; the model sees the reason of a denial.")]
By = Annotated[str | None, typer.Option("--by", help="Name of the approver. Default: your user name.")]
ResumeAfter = Annotated[bool, typer.Option("--resume", help="Then resume the run here.")]


@app.command()
def show(approval: ApprovalName, *, as_json: AsJson = False, config: Config = None) -> None:
    """Show an approval: call, changes, reason and decision."""

    async def read() -> tuple[ApprovalQuestion, list[ApprovalAttempt]]:
        async with open_runs(config) as runs:
            question = await runs.approvals.get(approval)
            return question, await runs.approvals.attempts(question)

    question, attempts = anyio.run(read)
    if as_json:
        write_json({**approval_as_json(question), "attempts": [attempt_as_json(attempt) for attempt in attempts]})
        return
    lines = (*describe(question)[1:], *describe_edit(question), *explain(question))
    for line in (*lines, *_describe_decision(question, attempts)):
        write_line(line)


@app.command(hidden=True)
def approve(
    approval: ApprovalName,
    *,
    edit_args: Annotated[str | None, typer.Option("--edit-args", help="Replace the arguments (JSON object).")] = None,
    reason: Reason = "",
    by: By = None,
    resume: ResumeAfter = False,
    as_json: AsJson = False,
    config: Config = None,
) -> int:
    """Approve a pending call.

    Exit code 10: the approval was already decided or has expired.
    """
    arguments = None if edit_args is None else _parse_edited(edit_args)
    reply = Reply(decision="approved", by=_get_approver(by), reason=reason, arguments=arguments)
    return _decide(approval, reply, as_json=as_json, resume=resume, config=config)


@app.command(hidden=True)
def deny(
    approval: ApprovalName,
    *,
    reason: Reason = "",
    by: By = None,
    resume: ResumeAfter = False,
    as_json: AsJson = False,
    config: Config = None,
) -> int:
    """Deny a pending call.

    Exit code 10: the approval was already decided or has expired.
    """
    reply = Reply(decision="denied", by=_get_approver(by), reason=reason)
    return _decide(approval, reply, as_json=as_json, resume=resume, config=config)


def _decide(name: str, reply: Reply, *, as_json: bool, resume: bool, config: Config) -> int:
    async def decide() -> tuple[ApprovalQuestion, ContinuedRun]:
        async with open_runs(config) as runs:
            decided = await runs.approvals.decide(await runs.approvals.get(name), reply)
            return decided, await runs.continue_decided(decided.row.run_id)

    decided, continued = anyio.run(decide)
    # With `--resume`, stdout is for the result of the run.
    if as_json and not resume:
        write_json(approval_as_json(decided))
    else:
        line = f"{decided.row.approval_id} {decided.row.status} by {decided.row.decided_by}"
        warn_line(line) if resume else write_line(line)
    if continued.in_background:
        where = "on the server" if get_server_url() else "when a worker picks it up"
        warn_line(f"run:     {continued.run_id} continues {where}")
        return 0
    if resume:
        return resume_run(open_host(config), continued.run_id, View(output="json" if as_json else "text"))
    warn_line(f"next:    agent resume {continued.run_id}")
    return 0


def _parse_edited(text: str) -> dict[str, JsonValue]:
    try:
        value = parse_arguments(text)
    except ValueError as error:
        raise UsageError(f"--edit-args is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError("--edit-args must be a JSON object", hint='Write it like \'{"path": "a.txt"}\'')
    return value


def _get_approver(by: str | None) -> str:
    return by or get_user() or "unknown user"


def _describe_decision(question: ApprovalQuestion, attempts: list[ApprovalAttempt]) -> list[str]:
    lines = [f"hash: {question.hash}", f"run: {question.row.run_id}, step {question.row.step_id}"]
    lines.append(f"status: {question.row.status}")
    for attempt in attempts:
        state = "counted" if attempt.counted else "too late"
        reason = f" ({attempt.reason})" if attempt.reason else ""
        lines.append(
            f"{attempt.at.isoformat(timespec='seconds')} {attempt.status} by {attempt.decided_by}{reason}, {state}"
        )
    return lines
