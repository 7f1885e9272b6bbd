"""`script_list`, `script_help` and `script_run`: the tools for the scripts of skills.

A script's code is never shown, and scripts are not tools themselves: the three tools cost the same number of tokens for
one skill and for fifty. Every result is `{success, result, message}` or `{success, error, message}`. A failure names a
probable cause, such as a missing variable or package.
"""

import hashlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from anyio.to_thread import run_sync
from msgspec.structs import replace
from pydantic import JsonValue

from metier.decisions import StepStatus
from metier.definitions.skills.scripts import Script
from metier.definitions.skills.skill import SkillDefinition
from metier.definitions.text.yaml_text import Mapping as YamlMapping
from metier.definitions.text.yaml_text import Sequence as YamlSequence
from metier.errors import ToolFailed
from metier.events.step import SkillStepExecuted
from metier.prompts.texts import build_parameters, load_tool_text
from metier.skills.package import SkillPackage
from metier.skills.skill_trust import digest_files
from metier.tools.base import Preview, Tool, ToolContext, ToolInfo, ToolResult
from metier.tools.process.bounded_output import Output, render_streams
from metier.tools.process.child_environment import build_environment
from metier.tools.process.run import Outcome, ProcessLimits
from metier.tools.scripts.active_scripts import (
    RESPONSE_SCHEMA,
    ScriptCatalog,
    ScriptFailed,
    ScriptLimits,
    add_json_flag,
    build_failure,
    build_success,
    check_args,
)
from metier.tools.scripts.runner import ScriptCall, ScriptRunner, check_may_run, parse_script_metadata, read_script

_FLAG = re.compile(r"--json\b")
# Some libraries turn parameters into options: `def main(json: bool = False)`.
_PARAMETER = re.compile(r"\bjson\s*:\s*(?:bool\b|(?:typing\.)?Annotated\[)")
_IMPORT = re.compile(r"^\s*(?:from\s+\.?|import\s+)(\w+)", re.MULTILINE)


type HelpTexts = dict[tuple[str, str], str]
"""Cache of the scripts' help texts by path and content hash, for the lifetime of the run's tools."""


def knows_json(help_text: str | None, script: Script) -> bool:
    """Return True if the script supports `--json`, by its help text or else by its source and that of its modules."""
    if help_text is not None:
        return _FLAG.search(help_text) is not None
    return any(_FLAG.search(text) or _PARAMETER.search(text) for text in _list_sources(script))


def is_declared_read(skill: SkillDefinition) -> bool:
    """Return True if the skill's `side_effects` declare none, so that its scripts may run twice."""
    entry = skill.contract.find("side_effects")
    if entry is None and (part := skill.contract.find("contract")) is not None and isinstance(part.value, YamlMapping):
        entry = part.value.find("side_effects")
    kinds = entry.value.find_value("kinds") if entry is not None and isinstance(entry.value, YamlMapping) else None
    return isinstance(kinds, YamlSequence) and not kinds.items


def _list_sources(script: Script) -> Iterator[str]:
    own = read_script(script.path).decode("utf-8", "replace")
    yield own
    for name in dict.fromkeys(_IMPORT.findall(own)):
        siblings = script.path.parent / f"{name}.py"
        if siblings.is_file():
            try:
                yield read_script(siblings).decode("utf-8", "replace")
            except ToolFailed:
                continue


def _identify(script: Script) -> tuple[str, str]:
    return str(script.path), hashlib.sha256(read_script(script.path)).hexdigest()


USAGE_ERROR = 2
"""The exit code of argument parsers for invalid arguments."""

_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'", re.ASCII)
_MIN_VARIABLE = 3
"""Shorter variable names occur in other text by chance."""
_PACKAGES = {
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "fitz": "pymupdf",
    "googleapiclient": "google-api-python-client",
    "pptx": "python-pptx",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Package names by module name, if they differ."""


def explain_failure(outcome: Outcome, call: ScriptCall, environ: Mapping[str, str]) -> ScriptFailed | None:
    """Return a failure that says what to change; None if only the script's own output explains it."""
    stderr = outcome.stderr.text
    stdout = outcome.stdout.last(ScriptLimits().stdout_tail_bytes).strip()
    name, allowed = call.script.name, call.package.definition.permissions_env
    if variable := get_withheld_variable(stderr, environ, allowed):
        message = (
            f"Env var {variable!r} not in allowlist: the script asks for it, and 'permissions: env:' of skill"
            f" {call.package.definition.name!r} does not name it"
        )
        tail = outcome.stderr.last(ScriptLimits().stderr_tail_bytes).strip()
        return ScriptFailed("permission_denied", f"{message}\nstderr: {tail}", stdout=stdout)
    package = get_missing_package(stderr)
    siblings = {path.stem for path in call.script.path.parent.glob("*.py")}
    # A missing module of the skill's own folder is no package that the header could declare.
    if package and package not in siblings:
        declared = _list_declared(call)
        return ScriptFailed("execution_failed", describe_missing_package(package, script=name, declared=declared))
    return None


def rejects_json_flag(outcome: Outcome) -> bool:
    """Return True if the script rejected its arguments because of `--json`, and therefore did nothing else."""
    return outcome.exit_code == USAGE_ERROR and "--json" in outcome.stderr.text


def get_withheld_variable(stderr: str, environ: Mapping[str, str], allowed: Collection[str]) -> str:
    """Return a variable in the error that the agent has and the skill does not request; empty if there is none."""
    passed = build_environment(environ, allowed)
    words = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", stderr))
    names = (name for name in environ if name not in passed and len(name) >= _MIN_VARIABLE)
    # The first by name, so that the message doesn't depend on the order of the environment.
    return min((name for name in names if name in words), default="")


def get_missing_package(stderr: str) -> str:
    """Return the package of the module that the script could not import; empty if there is none."""
    found = _MISSING_MODULE.findall(stderr)
    if not found:
        return ""
    module = str(found[-1]).partition(".")[0]
    return _PACKAGES.get(module, module.replace("_", "-"))


def describe_missing_package(package: str, *, script: str, declared: Collection[str]) -> str:
    """Describe a missing package, with the line that declares it."""
    wanted = ", ".join(f'"{name}"' for name in (*declared, package))
    return (
        f"Script {script!r} needs the package {package!r}, which its header does not name: write"
        f" `# dependencies = [{wanted}]` between `# /// script` and `# ///` at its top (PEP 723)"
    )


def _list_declared(call: ScriptCall) -> list[str]:
    try:
        metadata = parse_script_metadata(read_script(call.script.path).decode("utf-8", "replace"))
    except ToolFailed:
        return []
    return [str(requirement) for requirement in metadata.dependencies]


type Arguments = dict[str, JsonValue]

_SUMMARY_BYTES = 500
_SHOWN_CHARACTERS = 200
_USAGE = re.compile(r"^usage:?\s*(.*?)(?:\n[ \t]*\n|\Z)", re.IGNORECASE | re.MULTILINE | re.DOTALL)
_STATUS: dict[str, StepStatus] = {"timeout": "timeout", "permission_denied": "denied"}


def build_script_tools(
    catalog: ScriptCatalog, runner: ScriptRunner, limits: ScriptLimits | None = None
) -> tuple[Tool, ...]:
    limits = limits or ScriptLimits()
    texts: HelpTexts = {}
    return (
        ScriptList(catalog),
        ScriptHelp(catalog, runner, limits, help_texts=texts),
        ScriptRun(catalog, runner, limits, help_texts=texts),
    )


class ScriptList:
    """Lists the available scripts."""

    info = ToolInfo(
        id="builtin:script_list",
        name="script_list",
        description=load_tool_text("script_list").description,
        category="custom",
        input_schema=build_parameters("script_list", {"skill_name": {"type": ["string", "null"]}}),
        output_schema=RESPONSE_SCHEMA,
        risk="low",
        effect="read",
    )

    def __init__(self, catalog: ScriptCatalog) -> None:
        self._catalog = catalog

    async def execute(self, arguments: Arguments, context: ToolContext) -> ToolResult:  # noqa: ARG002  the contract's
        skill_name = arguments.get("skill_name")
        try:
            listed = self._catalog.list_scripts(None if skill_name is None else str(skill_name))
        except ToolFailed as error:
            return build_failure(error)
        result: dict[str, JsonValue] = {
            skill: [{"name": script.path.stem, "path": str(script.path)} for script in scripts]
            for skill, scripts in listed.items()
        }
        count = sum(len(scripts) for scripts in listed.values())
        return build_success(result, f"Found {_many(count, 'script')} across {_many(len(listed), 'skill')}")


class _RunningTool:
    """A tool that runs a script."""

    def __init__(
        self, catalog: ScriptCatalog, runner: ScriptRunner, limits: ScriptLimits, *, help_texts: HelpTexts
    ) -> None:
        self._catalog = catalog
        self._runner = runner
        self._limits = limits
        self._help = help_texts


class ScriptHelp(_RunningTool):
    """Shows a script's help. This runs the script's code, so it needs the same trust as `script_run`."""

    info = ToolInfo(
        id="builtin:script_help",
        name="script_help",
        description=load_tool_text("script_help").description,
        category="custom",
        input_schema=build_parameters(
            "script_help",
            {"skill_name": "string", "script_name": "string"},
            required=("skill_name", "script_name"),
        ),
        output_schema=RESPONSE_SCHEMA,
        risk="medium",
        # Not `read`, because it runs the script: a rule that asks before `script_run` must apply to this too.
        effect="idempotent",
    )

    async def execute(self, arguments: Arguments, context: ToolContext) -> ToolResult:
        return await _answer("script_help", context, lambda record: self._show(arguments, context, record))

    async def _show(self, arguments: Arguments, context: ToolContext, record: "_Record") -> ToolResult:
        package, script = _find(self._catalog, arguments, record)
        await check_may_run(package)
        known = self._help.get(_identify(script))
        if known is None:
            own = self._limits.narrow(package.definition)
            limits = _process_limits(own, context)
            call = ScriptCall(
                package=package, script=script, args=("--help",), keep_partial=_build_keep_partial(context)
            )
            outcome = record.outcome = await self._runner.run(call, limits)
            _check_outcome(outcome, limits, own)
            known = outcome.stdout.text.strip() or outcome.stderr.text.strip()
            self._help[_identify(script)] = known
        found: JsonValue = {"help_text": known, "usage": _get_usage(known)}
        return build_success(found, f"Retrieved help for {script.path.stem}")


class ScriptRun(_RunningTool):
    """Runs a script. Its effect is unknown, so an interrupted call is never repeated without asking."""

    info = ToolInfo(
        id="builtin:script_run",
        name="script_run",
        description=load_tool_text("script_run").description,
        category="custom",
        input_schema=build_parameters(
            "script_run",
            {
                "skill_name": "string",
                "script_name": "string",
                "args": {"type": ["array", "null"], "items": {"type": "string"}},
                "json": {"type": "boolean", "default": True},
            },
            required=("skill_name", "script_name"),
        ),
        output_schema=RESPONSE_SCHEMA,
        risk="high",
        effect="opaque",
        spools=True,
    )

    async def execute(self, arguments: Arguments, context: ToolContext) -> ToolResult:
        return await _answer("script_run", context, lambda record: self._run(arguments, context, record))

    async def preview(self, arguments: Arguments, context: ToolContext) -> Preview:
        """Preview the script's file, and the variables of the agent's environment that its skill requests.

        The approval is bound to all files of the skill, because a script can import any of them.
        """
        del context
        package, script = _find(self._catalog, arguments, _Record())
        names = package.definition.permissions_env
        digest = hashlib.sha256(read_script(script.path)).hexdigest()
        granted = f"It gets these variables of the environment: {', '.join(names)}" if names else ""
        lines = [f"Run {script.path} (sha256 {digest[:16]}…)", *([granted] if granted else [])]
        tree = await run_sync(digest_files, package.folder)
        return Preview("\n".join(lines), base=hashlib.sha256(f"{tree} {names}".encode()).hexdigest())

    async def _run(self, arguments: Arguments, context: ToolContext, record: "_Record") -> ToolResult:
        package, script = _find(self._catalog, arguments, record)
        args = _read_args(arguments)
        check_args(args, self._limits)
        wants_json = arguments.get("json", True) is not False
        has_flag = wants_json and knows_json(self._help.get(_identify(script)), script)
        own = self._limits.narrow(package.definition)
        limits = _process_limits(own, context)
        call = ScriptCall(
            package=package,
            script=script,
            args=tuple(add_json_flag(args) if has_flag else args),
            idempotency_key=context.idempotency_key,
            trace_parent=context.trace_parent,
            spool=context.spool,
            keep_partial=_build_keep_partial(context),
            show_output=context.show_output,
        )
        outcome = record.outcome = await self._runner.run(call, limits)
        # Running it again is safe only if the skill declares no side effects, although argument parsers exit before
        # they act.
        if has_flag and rejects_json_flag(outcome) and is_declared_read(package.definition):
            has_flag = False
            outcome = record.outcome = await self._runner.run(replace(call, args=tuple(args)), limits)
        self._check(outcome, limits, call, has_flag=has_flag)
        return self._answer(outcome, script, wants_json=wants_json, has_flag=has_flag)

    def _check(self, outcome: Outcome, limits: ProcessLimits, call: ScriptCall, *, has_flag: bool) -> None:
        """Raise `ScriptFailed` for a failed script, with the probable cause."""
        if outcome.exit_code and (cause := explain_failure(outcome, call, self._runner.environ)) is not None:
            raise cause
        _check_outcome(outcome, limits, self._limits, has_flag=has_flag)

    def _answer(self, outcome: Outcome, script: Script, *, wants_json: bool, has_flag: bool) -> ToolResult:
        """Return JSON if it was wanted, or the text of a script without `--json`."""
        notice = f"; {outcome.notice}" if outcome.notice else ""
        done = f"Executed {script.path.stem} script{_warning(outcome.stdout)}{notice}"
        if not wants_json:
            return build_success(outcome.stdout.text, done)
        if has_flag:
            return build_success(self._parse_json(outcome), done)
        try:
            return build_success(_load_json(outcome.stdout.text), done)
        except (ValueError, RecursionError):
            return build_success(outcome.stdout.text, f"{done}; it has no --json, so this is its text")

    def _parse_json(self, outcome: Outcome) -> JsonValue:
        """Parse the output. Raises `ScriptFailed` with `parse_error` and the start of the output."""
        text = outcome.stdout.text
        try:
            return _load_json(text)
        except (ValueError, RecursionError) as error:
            seen = "output that was cut" if outcome.stdout.is_truncated else (text[:_SHOWN_CHARACTERS] or "nothing")
            stderr = _quote(outcome.stderr, self._limits)
            raise ScriptFailed(
                "parse_error", f"Expected JSON output, got: {seen}{_warning(outcome.stdout)}{stderr}"
            ) from error


@dataclass(slots=True)
class _Record:
    """The facts of a call for its event, collected during the call."""

    skill: str = ""
    script: str = ""
    is_repeatable: bool = False
    outcome: Outcome | None = None


async def _answer(tool: str, context: ToolContext, work: Callable[[_Record], Awaitable[ToolResult]]) -> ToolResult:
    """Do the work, convert a failure into a result, and emit the event."""
    record, started = _Record(), time.monotonic()
    try:
        result = await work(record)
    except ToolFailed as error:
        result = build_failure(error)
    event = _build_event(tool, result, record)
    event = replace(event, step_id=context.step_id, duration_ms=round((time.monotonic() - started) * 1000, 3))
    context.emit(event)
    meta: dict[str, JsonValue] = {
        "skill": record.skill,
        "script": record.script,
        "duration_ms": event.duration_ms,
        "exit_code": event.exit_code,
        "stdout_bytes": event.stdout_bytes,
        "stderr_bytes": event.stderr_bytes,
        "repeatable": record.is_repeatable,
    }
    return replace(result, meta={**result.meta, **meta})


def _build_event(tool: str, result: ToolResult, record: _Record) -> SkillStepExecuted:
    code = str(result.meta.get("code", ""))
    outcome = record.outcome
    stdout = outcome.stdout if outcome else Output()
    stderr = outcome.stderr if outcome else Output()
    return SkillStepExecuted(
        step_id="",
        action="call_tool",
        status="succeeded" if result.ok else _STATUS.get(code, "failed"),
        tool=tool,
        skill_name=record.skill,
        script=record.script,
        exit_code=outcome.exit_code if outcome else None,
        stdout_summary=stdout.last(_SUMMARY_BYTES),
        stderr_summary=stderr.last(_SUMMARY_BYTES),
        stdout_bytes=stdout.total_bytes,
        stderr_bytes=stderr.total_bytes,
        error_type=code,
        truncated=stdout.is_truncated,
    )


def _find(catalog: ScriptCatalog, arguments: Arguments, record: _Record) -> tuple[SkillPackage, Script]:
    package, script = catalog.get_script(str(arguments["skill_name"]), str(arguments["script_name"]))
    record.skill, record.script = package.definition.name, script.name
    record.is_repeatable = is_declared_read(package.definition)
    return package, script


def _build_keep_partial(context: ToolContext) -> Callable[[Output, Output], None]:
    """Return the function that receives the output so far of an interrupted script."""
    return lambda stdout, stderr: context.keep_partial(context.clean(render_streams(stdout, stderr)))


def _read_args(arguments: Arguments) -> list[str]:
    args = arguments.get("args")
    return [str(arg) for arg in args] if isinstance(args, list) else []


def _process_limits(limits: ScriptLimits, context: ToolContext) -> ProcessLimits:
    return ProcessLimits(
        timeout_seconds=context.limit_seconds(limits.timeout_seconds),
        max_stdout_bytes=limits.max_output_bytes,
    )


def _check_outcome(
    outcome: Outcome, process_limits: ProcessLimits, limits: ScriptLimits, *, has_flag: bool = False
) -> None:
    """Raise `ScriptFailed` with `timeout` or `execution_failed` and the end of both streams, if the script failed."""
    stderr = _quote(outcome.stderr, limits)
    stdout = outcome.stdout.last(limits.stdout_tail_bytes).strip()
    if outcome.timed_out:
        message = f"Script timed out after {process_limits.timeout_seconds:g}s{stderr}"
        raise ScriptFailed("timeout", message, stdout=stdout)
    if outcome.signal:
        raise ScriptFailed("execution_failed", f"Script was ended by signal {outcome.signal}{stderr}", stdout=stdout)
    if outcome.exit_code != 0:
        hint = ""
        if has_flag and rejects_json_flag(outcome):
            hint = " (if it does not know --json, call it with json=false)"
        message = f"Script failed with exit code {outcome.exit_code}{hint}{stderr}"
        raise ScriptFailed("execution_failed", message, stdout=stdout)


def _load_json(text: str) -> JsonValue:
    """Parse strict JSON, without `NaN`. Lone surrogates (`"\\ud800"`) are replaced, because they can't be encoded."""
    parsed: JsonValue = json.loads(text, parse_constant=_refuse_constant)
    if "\\ud" not in text.lower():
        return parsed
    # Through bytes, because the journal and requests to models are UTF-8.
    encodable = json.dumps(parsed, ensure_ascii=False).encode("utf-8", "replace")
    return json.loads(encodable)


def _refuse_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is not JSON")


def _quote(stderr: Output, limits: ScriptLimits) -> str:
    tail = stderr.last(limits.stderr_tail_bytes).strip()
    return f"\nstderr: {tail}" if tail else ""


def _warning(stdout: Output) -> str:
    if not stdout.is_truncated:
        return ""
    return f" (warning: output of {stdout.total_bytes} bytes cut, {stdout.dropped_bytes} bytes in the middle dropped)"


def _get_usage(text: str) -> str:
    found = _USAGE.search(text)
    return " ".join(found.group(1).split()) if found else ""


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
