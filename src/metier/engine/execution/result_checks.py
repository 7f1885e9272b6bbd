"""Checks of a result against its request: schema, files, commands. The model may correct a result once.

A check may run again after a crash, so its command should only read. The run's rules apply to it, and a command that
needs an approval is not run.
"""

import json
from pathlib import Path

from pydantic import JsonValue

from metier.approval.rules import SHELL
from metier.decisions import ActionStep
from metier.definitions.files.contained_path import read_contained
from metier.definitions.task import Criterion, render_criterion
from metier.engine import actions as a
from metier.engine.decide import describe_disabled
from metier.engine.entries.task import ResultChecked
from metier.engine.journal import RunLog
from metier.engine.redaction import redact
from metier.engine.services import Services
from metier.errors import UsageError
from metier.tools.base import ToolContext
from metier.tools.schemas import SchemaCheck

MAX_READ_BYTES = 4 * 1024 * 1024
TOLD_CHARACTERS = 400


async def check_result(action: a.CheckResult, log: RunLog, services: Services) -> None:
    order = log.state.started.order if log.state.started else None
    assert order is not None
    failures: list[str] = []
    if order.output_schema is not None:
        failures += await list_wrong_result(action.result, order.output_schema)
    for criterion in order.criteria:
        wrong = await _check(criterion, log, services) if criterion.is_checkable else ""
        failures += [redact(f"{render_criterion(criterion)}: {wrong}", services)] if wrong else []
    can_repair = bool(failures) and log.state.unaccepted is None
    await log.record(ResultChecked(failures=tuple(failures), repair=can_repair))


async def list_wrong_result(text: str, schema: dict[str, JsonValue]) -> list[str]:
    """List the problems of a result according to its schema."""
    try:
        check = SchemaCheck("output_schema", schema)
    except UsageError as error:
        return [error.message]
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError) as error:
        # The schema may want a string, for which plain words are fine.
        if not await check.get_error_in_thread(text):
            return []
        return [f"The result must be JSON and nothing else, by the schema {json.dumps(schema)}: {error}"]
    return [f"The result is not what its schema says: {wrong}" for wrong in await check.list_errors_in_thread(value)]


async def _check(criterion: Criterion, log: RunLog, services: Services) -> str:
    """Return why the result fails the check; empty if it passes."""
    if criterion.file and (wrong := _check_file(criterion, services.workspace)):
        return wrong
    return await _check_command(criterion.command, log, services) if criterion.command else ""


def _check_file(criterion: Criterion, workspace: Path) -> str:
    try:
        data = read_contained(workspace / criterion.file, within=workspace, limit=MAX_READ_BYTES)
    except OSError as error:
        return error.strerror or "it cannot be read"
    if not data.strip():
        return "it is empty"
    return "" if criterion.contains.encode() in data else "it does not"


async def _check_command(command: str, log: RunLog, services: Services) -> str:
    verdict = services.policy.judge(ActionStep(type="run_command", params={"command": command}), skill=log.state.skill)
    if SHELL in log.state.disabled:
        return describe_disabled(SHELL)
    if verdict.decision != "allow":
        return f"it is not allowed to run: {verdict.reason or 'a rule asks about it'}"
    if services.tools.find(SHELL) is None:
        return "it cannot be run: this run has no shell"
    context = ToolContext(
        workspace=services.workspace,
        run_id=log.state.run_id,
        step_id="check",
        timeout_seconds=services.runtime.timeout_seconds,
    )
    result = await services.tools.call(SHELL, {"command": command}, context)
    # Redact before truncating: the truncated text could start within a secret.
    return "" if result.ok else f"it failed: {redact(result, services).error.strip()[-TOLD_CHARACTERS:]}"
