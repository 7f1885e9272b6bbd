"""Validation of a skill's answer against its contract, and responses for failures."""

import json
from pathlib import Path, PurePosixPath

from msgspec import Struct
from pydantic import JsonValue, ValidationError

from metier.capabilities.contract import SkillContract
from metier.capabilities.inputs import complete_request
from metier.capabilities.protocol import (
    AgentResponse,
    ResponseError,
    ResponseMetadata,
    SkillAnswer,
    TaskState,
    parse_answer,
)
from metier.definitions.files.whole_file import replace_file
from metier.errors import ToolFailed, UsageError
from metier.tools.schemas import SchemaCheck

MAX_ARTIFACT_BYTES = 16 * 1_048_576
_STATE_OF_CODE: dict[str, TaskState] = {
    "timeout": TaskState.TIMEOUT,
    "permission_denied": TaskState.BLOCKED,
    "undeclared_effect": TaskState.BLOCKED,
    "advisor_not_allowed": TaskState.BLOCKED,
    "not_sync_safe": TaskState.BLOCKED,
    "advice_refused": TaskState.ESCALATED,
}
"""States of turns that could not be finished, by error code; all other codes mean `failed`."""


class Judged(Struct, frozen=True):
    """The response to an answer, with the reasons if it violates the contract."""

    response: AgentResponse
    problems: tuple[str, ...] = ()
    """Violations in a finished answer. The skill may try again if its contract allows that."""


def judge_answer(value: JsonValue, contract: SkillContract, artifacts: Path) -> Judged:
    """Turn an answer into a response. Its files are written only if all of it is valid."""
    try:
        answer = parse_answer(value)
    except ValidationError as error:
        return Judged(build_failure("invalid_answer", f"The skill returned an invalid answer: {_first(error)}"))
    state = TaskState(answer.state)
    if state.is_resumable and not contract.allows(state):
        message = f"The skill returned state {state.value!r}, which its contract does not allow"
        return Judged(build_failure("state_not_allowed", message, state=TaskState.BLOCKED))
    # A skill that asks or delegates has not produced its outputs yet.
    problems = list_problems(answer, contract, artifacts) if state == TaskState.COMPLETED else ()
    if problems:
        return Judged(build_failure("invalid_output", problems[0]), problems)
    return Judged(_accept(answer, contract, artifacts))


def list_problems(answer: SkillAnswer, contract: SkillContract, artifacts: Path) -> tuple[str, ...]:
    """Return the contract violations of a finished answer."""
    found: list[str] = []
    if contract.output_schema is not None:
        try:
            wrong = SchemaCheck(contract.skill, contract.output_schema).get_error(dict(answer.outputs))
        except UsageError as error:
            wrong = error.message
        found += [f"The outputs do not match output_schema: {wrong}"] if wrong else []
    named = {str(PurePosixPath(name)) for name in answer.artifacts}
    found += [
        f"The required artifact {name!r} is missing"
        for name in contract.required_artifacts
        if name not in named and not (artifacts / name).is_file()
    ]
    found += [wrong for name, text in answer.artifacts.items() if (wrong := _judge_artifact(name, text))]
    found += [
        f"The skill lists the artifact {name!r}, but there is no such file in its artifacts folder"
        for name in answer.written
        if not _is_written(artifacts, name)
    ]
    return tuple(found)


def _is_written(folder: Path, name: str) -> bool:
    # With links resolved: one in the folder may lead out of it.
    path = (folder / name).resolve()
    return path.is_relative_to(folder.resolve()) and path.is_file()


def build_failure(
    code: str, message: str, *, state: TaskState = TaskState.FAILED, retryable: bool = False
) -> AgentResponse:
    error = ResponseError(code=code, message=message, retryable=retryable)
    return AgentResponse(state=state, errors=(error,), metadata=ResponseMetadata(agent_state_detail=code))


def build_blocked(code: str, message: str) -> AgentResponse:
    return build_failure(code, message, state=TaskState.BLOCKED)


def build_broken(error: ToolFailed) -> AgentResponse:
    """Build the response for a turn that ended without an answer."""
    state = _STATE_OF_CODE.get(error.code, TaskState.FAILED)
    message = f"{error.message}. {error.hint}" if error.hint else error.message
    return build_failure(error.code, message, state=state, retryable=error.code in ("timeout", "execution_failed"))


def _accept(answer: SkillAnswer, contract: SkillContract, artifacts: Path) -> AgentResponse:
    state = TaskState(answer.state)
    written = [_write_artifact(artifacts, name, text) for name, text in answer.artifacts.items()]
    written += [str(artifacts / name) for name in answer.written if _is_written(artifacts, name)]
    required = [str(artifacts / name) for name in contract.required_artifacts if state == TaskState.COMPLETED]
    errors, detail = _name_failures(answer, contract)
    return AgentResponse(
        state=state,
        outputs=answer.outputs,
        errors=errors,
        input_request=answer.input_request and complete_request(answer.input_request, contract),
        delegation=answer.delegation,
        artifacts=tuple(dict.fromkeys((*written, *required))),
        metadata=ResponseMetadata(agent_state_detail=detail),
    )


def _name_failures(answer: SkillAnswer, contract: SkillContract) -> tuple[tuple[ResponseError, ...], str]:
    """Take `retryable` from the contract's failure modes, and mark failures that the contract does not declare."""
    detail = answer.errors[0].code if answer.errors else ""
    errors: list[ResponseError] = []
    for error in answer.errors:
        mode = contract.find_failure(error.code)
        if mode is not None:
            errors.append(error.model_copy(update={"retryable": mode.retryable}))
        else:
            detail = "undeclared_failure" if contract.failure_modes else detail
            errors.append(error)
    # The store limits this field.
    return tuple(errors), detail[:50]


def _judge_artifact(name: str, text: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or any(part in ("..", "") or "\0" in part for part in path.parts):
        return f"Artifact {name!r} has a path outside the artifacts folder"
    if len(text) > MAX_ARTIFACT_BYTES:
        return f"Artifact {name!r} is larger than {MAX_ARTIFACT_BYTES} bytes"
    return ""


def _write_artifact(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    # Atomic: a turn that is repeated after a crash must not find half a file.
    replace_file(path, text.encode("utf-8", "surrogatepass"), is_private=False)
    return str(path)


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    location = ".".join(str(part) for part in first["loc"])
    return f"{location}: {first['msg']}" if location else first["msg"]


def as_json(response: AgentResponse) -> JsonValue:
    value: JsonValue = json.loads(response.model_dump_json())
    return value
