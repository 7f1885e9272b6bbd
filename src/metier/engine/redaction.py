"""Redaction of outside text: the output of tools, hooks, checks and skills enters the journal only through `redact`.

Redact before truncating, because half of a secret matches no pattern.

The arguments of a call stay exact, whether the model, a hook or an approver wrote them: an approval is bound to their
hash (`bind_approval`), and the call runs with exactly these. Views redact them before they show them.
"""

import json

from msgspec.structs import replace
from pydantic import JsonValue

from metier.engine.services import Services
from metier.events.step import SkillStepExecuted
from metier.tools.base import ToolResult
from metier.tools.hook_process import HookRun


def redact[T: (str, ToolResult, HookRun, SkillStepExecuted)](value: T, services: Services) -> T:
    """Return outside text for the journal, without secrets and control characters.

    The output of a `ToolResult` becomes text; its JSON is only needed for facts about artifacts.
    """
    match value:
        case str():
            return services.redact(value)
        case ToolResult():
            return _redact_result(value, services)
        case HookRun():
            return _redact_hook_run(value, services)
        case SkillStepExecuted():
            return replace(
                value,
                stdout_summary=services.redact(value.stdout_summary),
                stderr_summary=services.redact(value.stderr_summary),
            )


def _redact_result(result: ToolResult, services: Services) -> ToolResult:
    question, diff = result.question, result.meta.get("diff")
    return replace(
        result,
        output=services.redact(_render_output(result, services)),
        error=services.redact(result.error),
        wants_write=services.redact(result.wants_write),
        question=None if question is None else replace(question, text=services.redact(question.text)),
        meta=result.meta | {"diff": services.redact(diff)} if isinstance(diff, str) else result.meta,
    )


def _render_output(result: ToolResult, services: Services) -> str:
    output: JsonValue = result.output
    if isinstance(output, str):
        return output
    if isinstance(output, dict) and not result.ok:
        # Before it is quoted: a secret that contains a quotation mark is known as it is, not as JSON writes it.
        output = {name: services.redact(value) if isinstance(value, str) else value for name, value in output.items()}
    return json.dumps(output, ensure_ascii=False)


def _redact_hook_run(run: HookRun, services: Services) -> HookRun:
    answer = run.answer
    return replace(
        run,
        problem=services.redact(run.problem),
        answer=replace(
            answer,
            message=services.redact(answer.message),
            reason=services.redact(answer.reason),
            context=services.redact(answer.context),
        ),
    )
