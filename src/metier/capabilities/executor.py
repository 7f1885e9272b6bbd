"""Execution of one turn of a skill: contract, dependencies, trust, then its process or its entrypoint script."""

import asyncio
import hashlib
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import msgspec
from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.capabilities.advisor import Advisor, SaveAdvice, TurnQuestions
from metier.capabilities.answers import Judged, build_broken, build_failure, judge_answer
from metier.capabilities.contract import SkillContract
from metier.capabilities.contract_reader import list_modules, load_contract
from metier.capabilities.impl.process import Turn, call_impl
from metier.capabilities.inputs import check_input_object, check_inputs
from metier.capabilities.protocol import (
    AgentResponse,
    ExecutionStatus,
    ResponseError,
    TaskState,
    task_state_to_execution_status_value,
)
from metier.capabilities.sync_check import check_file
from metier.definitions.names import canonical_name
from metier.definitions.skills.scripts import discover_scripts, is_capability
from metier.definitions.skills.skill_names import hint_skill
from metier.definitions.skills.sources import get_bundled_folder
from metier.errors import SkillNotFound, ToolFailed, UsageError
from metier.skills.activation import build_roots, find_package, get_packages
from metier.skills.needs import SkillNeeds
from metier.skills.package import SkillPackage
from metier.skills.workspace_trust import get_trust
from metier.tools.process.run import Outcome, ProcessLimits
from metier.tools.process.sandbox.confinement import Confinement
from metier.tools.scripts.active_scripts import ScriptFailed, add_json_flag, parse_script_name
from metier.tools.scripts.runner import ScriptCall, ScriptRunner, copy_trusted_code, default_environments

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_MAX_STDERR_SHOWN = 500


async def run_entrypoint(turn: Turn, environ: Mapping[str, str]) -> Judged:
    """Run the script of a skill without `impl.py`. Its arguments may use `{workspace}`, `{artifacts}` and inputs."""
    definition = turn.package.definition
    if definition.entrypoint is None:
        message = f"Skill {turn.contract.skill!r} has neither 'impl.py' nor an entrypoint, so only a model can use it"
        return Judged(build_failure("not_callable", message, state=TaskState.BLOCKED))
    try:
        turn.artifacts.mkdir(parents=True, exist_ok=True)
        outcome = await _run(turn, environ)
        value = _parse(outcome)
    except ToolFailed as error:
        return Judged(build_broken(error))
    answer: JsonValue = {"outputs": value if isinstance(value, dict) else {"result": value}}
    return judge_answer(answer, turn.contract, turn.artifacts)


async def _run(turn: Turn, environ: Mapping[str, str]) -> Outcome:
    entrypoint = turn.package.definition.entrypoint
    assert entrypoint is not None, "checked by the caller"
    name = parse_script_name(entrypoint.script)
    script = next((found for found in discover_scripts(turn.package.definition) if found.name == name), None)
    if script is None:
        raise ScriptFailed("not_found", f"The entrypoint names the script {entrypoint.script!r}, which does not exist")
    call = ScriptCall(
        package=turn.package,
        script=script,
        args=tuple(add_json_flag([_fill(arg, turn) for arg in entrypoint.args])),
        idempotency_key=turn.idempotency_key,
        spool=turn.spool,
    )
    limit = turn.contract.timeout_seconds
    # A caller can shorten the time that the contract gives the skill, but not extend it.
    limit = limit if turn.timeout_seconds is None else min(limit, turn.timeout_seconds)
    runner = ScriptRunner(
        environments=default_environments(environ, workspace=turn.workspace),
        environ=environ,
        confinement=turn.confinement,
    )
    return await runner.run(call, ProcessLimits(timeout_seconds=limit))


def _fill(arg: str, turn: Turn) -> str:
    known: dict[str, JsonValue] = {"workspace": str(turn.workspace), "artifacts": str(turn.artifacts), **turn.inputs}
    return _PLACEHOLDER.sub(lambda match: _text(known.get(match[1], "")), arg)


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parse(outcome: Outcome) -> JsonValue:
    tail = outcome.stderr.last(_MAX_STDERR_SHOWN).strip()
    if outcome.timed_out:
        raise ScriptFailed("timeout", "The script timed out")
    if outcome.exit_code != 0:
        raise ScriptFailed("execution_failed", f"The script failed with exit code {outcome.exit_code}: {tail}")
    try:
        value: JsonValue = json.loads(outcome.stdout.text)
    # Too deeply nested JSON raises RecursionError, and a script prints what it likes.
    except (ValueError, RecursionError) as error:
        raise ScriptFailed("parse_error", "The script did not print JSON") from error
    return value


def run_blocking[*Args, Result](work: Callable[[*Args], Awaitable[Result]], *args: *Args) -> Result:
    """Run a coroutine function to its end. Raises `UsageError` in an event loop, which waiting would block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return anyio.run(work, *args)
    raise UsageError(
        "A blocking call of a skill was made inside an event loop",
        hint="Await `run_once` or `take_turn` instead, or call it from a worker thread",
    )


class Capability(Struct, frozen=True, kw_only=True):
    """A callable skill with its contract."""

    package: SkillPackage
    contract: SkillContract


class ExecutionResult(Struct, frozen=True, kw_only=True):
    """The result of a skill that was called as a tool."""

    status: ExecutionStatus
    outputs: dict[str, JsonValue]
    errors: tuple[ResponseError, ...] = ()
    response: AgentResponse


class Attempt(Struct, frozen=True, kw_only=True):
    """The result of one turn, and the facts that the skill stored in it."""

    response: AgentResponse
    remembered: dict[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])


# A dataclass, because `repr=False` keeps the environment out of logs and tracebacks.
@dataclass(frozen=True, slots=True, kw_only=True)
class SkillExecutor:
    """Runs the skills of its packages. Created by `create_executor`, or by the runtime for a run."""

    packages: Mapping[str, SkillPackage]
    """Packages by canonical name."""
    workspace: Path
    artifacts: Path
    shares_artifacts: bool = False
    """Write artifacts to `artifacts` itself instead of one folder per conversation."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    advisor: Advisor | None = None
    confinement: Confinement = field(default_factory=Confinement)
    """Sandbox of the skills; outside of runs there is none by default."""
    needs: SkillNeeds | None = None
    """Explains why a dependency is not among the packages."""

    def execute(self, skill: str, inputs: dict[str, JsonValue], correlation_id: str) -> ExecutionResult:
        """Call a skill as a tool: one turn, nothing stored. A skill that needs a second turn is blocked."""
        return run_blocking(self.run_once, skill, inputs, correlation_id)

    async def run_once(self, skill: str, inputs: dict[str, JsonValue], correlation_id: str) -> ExecutionResult:
        check_input_object(inputs)
        found = self.get_capability(skill)
        if isinstance(found, AgentResponse):
            return _as_result(found)
        checked = check_inputs(inputs, found.contract)
        if checked.request is not None:
            message = checked.request.render()
            return _as_result(build_failure("invalid_input", message, state=TaskState.BLOCKED))
        turn = self.build_turn(found, inputs, context_id=correlation_id)
        response = (await self.attempt(turn, self.open_questions(found.contract))).response
        # Nothing of the turn is stored, so there is no conversation that an answer could continue.
        if response.state.is_resumable:
            message = f"Skill {found.contract.skill!r} needs another turn ({response.state.value}): {response.message}"
            response = build_failure("needs_another_turn", message, state=TaskState.BLOCKED)
        return _as_result(response)

    def get_capability(self, skill: str) -> Capability | AgentResponse:
        """Return the skill, or a response that says why it cannot be called. Raises `SkillNotFound`."""
        if not isinstance(skill, str):  # pyright: ignore[reportUnnecessaryIsInstance]  callers may not check types
            raise UsageError(f"The skill must be a name, not {skill!r}", hint='Give its name, as in "schema-infer"')
        package = self._find_package(skill)
        if package is None:
            hint = hint_skill(skill, self.packages) or "`agent skills list --all` lists all skills"
            raise SkillNotFound(f"There is no skill {skill!r}", hint=hint)
        reading = load_contract(package)
        if reading.contract is None:
            wrong = next(problem for problem in reading.problems if problem.severity == "error")
            return build_failure("contract_invalid", wrong.render(), state=TaskState.BLOCKED)
        missing = [name for name in reading.contract.depends_on if self._find_package(name) is None]
        if missing:
            lack = self.needs.find_lack(missing[0]) if self.needs is not None else None
            reason = lack.reason if lack is not None else "is not active"
            message = f"Skill {skill!r} depends on {missing[0]!r}, which {reason}"
            return build_failure("dependency_missing", message, state=TaskState.BLOCKED)
        return Capability(package=package, contract=reading.contract)

    def _find_package(self, name: str) -> SkillPackage | None:
        return self.packages.get(canonical_name(name)) or find_package(self.packages.values(), name)

    def build_turn(self, found: Capability, inputs: dict[str, JsonValue], *, context_id: str, number: int = 1) -> Turn:
        return Turn(
            package=found.package,
            contract=found.contract,
            context_id=context_id,
            number=number,
            inputs=inputs,
            workspace=self.workspace,
            artifacts=self.artifacts if self.shares_artifacts else self.artifacts / _as_folder(context_id),
            confinement=self.confinement,
        )

    def open_questions(
        self, contract: SkillContract, *, known: dict[str, JsonValue] | None = None, save: SaveAdvice | None = None
    ) -> TurnQuestions | None:
        """Return the advice questions of a turn; None without an advisor."""
        return TurnQuestions(self.advisor, contract, known=known or {}, save=save) if self.advisor else None

    async def attempt(self, turn: Turn, questions: TurnQuestions | None) -> Attempt:
        """Take one turn. A hybrid skill may correct an answer that violates its contract, a limited number of times."""
        started = time.monotonic()
        remembered: dict[str, JsonValue] = {}
        report: list[str] = []
        while True:
            judged = await self._call(replace(turn, problems=tuple(report)), questions, remembered)
            report += [f"Attempt {len(report) + 1}: {problem}" for problem in judged.problems[:1]]
            if not judged.problems or not _may_fix(turn.contract, len(report)):
                break
        response = (
            _escalate(judged.response, report) if judged.problems and _is_fixing(turn.contract) else judged.response
        )
        facts = {
            "duration_ms": round((time.monotonic() - started) * 1000, 3),
            "fix_iterations": len(report) - bool(judged.problems) + (questions.fixes if questions else 0),
            "advice_calls": questions.calls if questions else 0,
            "report": (*response.metadata.report, *(questions.report if questions else ())),
        }
        metadata = response.metadata.model_copy(update=facts)
        return Attempt(
            response=response.model_copy(update={"metadata": metadata}),
            remembered=remembered,
        )

    async def _call(self, turn: Turn, questions: TurnQuestions | None, remembered: dict[str, JsonValue]) -> Judged:
        if not is_capability(turn.package.definition):
            return await run_entrypoint(turn, self.environ)
        try:
            # The copy that is run is the one whose trust was checked, even if the files change meanwhile.
            turn = replace(turn, package=await copy_trusted_code(turn.package))
            await anyio.to_thread.run_sync(_check_safety, turn)
            turn.artifacts.mkdir(parents=True, exist_ok=True)
            answered = await call_impl(turn, self.environ, advise=questions.advise if questions else None)
        except ToolFailed as error:
            return Judged(build_broken(_refine_code(error, turn.contract)))
        remembered.update(answered.remembered)
        return judge_answer(answered.response, turn.contract, turn.artifacts)


def create_executor(
    repo_root: Path | str,
    *,
    advisor: Advisor | None = None,
    environ: Mapping[str, str] | None = None,
    home: Path | None = None,
    skills_dirs: Sequence[Path] = (),
) -> SkillExecutor:
    """Create an executor for project, user and bundled skills. Trust is checked at each call."""
    root = Path(repo_root).resolve()
    trust = get_trust(root, home=home or Path.home(), environ=os.environ if environ is None else environ)
    roots = build_roots(
        home=home or Path.home(),
        workspace=root,
        bundled=get_bundled_folder(),
        directories=skills_dirs or ((root / "skills",) if (root / "skills").is_dir() else ()),
        trust=replace(trust, is_directory_named=bool(skills_dirs)),
    )
    found = get_packages(roots)
    names = {canonical_name(package.definition.name) for package in found.packages}
    packages = {name: package for name in names if (package := found.find(name)) is not None}
    return SkillExecutor(
        packages=packages,
        workspace=root,
        artifacts=root / "runs" / "artifacts",
        environ=os.environ if environ is None else environ,
        advisor=advisor,
    )


def _as_folder(context_id: str) -> str:
    """Return a valid, unique folder name for a conversation."""
    # The digest distinguishes IDs that only differ in replaced characters.
    plain = re.sub(r"[^\w.-]+", "-", context_id, flags=re.ASCII).strip(".-")[:80]
    digest = hashlib.sha256(context_id.encode()).hexdigest()[:12]
    return plain if plain == context_id else f"{plain}-{digest}"


def _check_safety(turn: Turn) -> None:
    """Raise `ToolFailed` if the contract declares synchronous safety and the code violates it."""
    if not turn.contract.sync_celery:
        return
    for file in list_modules(turn.package.definition):
        wrong = next((found for found in check_file(file) if found.severity == "error"), None)
        if wrong is not None:
            message = f"{file.name!r} line {wrong.line} cannot run in a synchronous task: {wrong.message}"
            raise ToolFailed(message, hint=wrong.hint, code="not_sync_safe")


def _is_fixing(contract: SkillContract) -> bool:
    # A deterministic skill would give the same answer again.
    return contract.execution_mode != "deterministic"


def _may_fix(contract: SkillContract, tries: int) -> bool:
    # Each try runs the code again, so effects that cannot be repeated rule it out.
    return _is_fixing(contract) and contract.effect != "opaque" and tries <= contract.max_fix_iterations


def _escalate(response: AgentResponse, report: list[str]) -> AgentResponse:
    metadata = response.metadata.model_copy(update={"report": tuple(report), "agent_state_detail": "fix_limit"})
    return response.model_copy(update={"state": TaskState.ESCALATED, "metadata": metadata})


def _refine_code(error: ToolFailed, contract: SkillContract) -> ToolFailed:
    if error.code == "advice_refused" and contract.execution_mode == "deterministic":
        return ToolFailed(error.message, hint="Write execution_mode: hybrid", code="advisor_not_allowed")
    return error


def _as_result(response: AgentResponse) -> ExecutionResult:
    return ExecutionResult(
        status=ExecutionStatus(task_state_to_execution_status_value(response.state)),
        outputs=response.outputs,
        errors=response.errors,
        response=response,
    )
