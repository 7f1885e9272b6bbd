"""A skill without `impl.py` as the degenerate case: its `entrypoint` script, run once, its JSON as outputs."""

import json
from collections.abc import Mapping

from pydantic import JsonValue

from metier.capabilities.answers import Judged, build_broken, build_failure, judge_answer
from metier.capabilities.impl.process import Turn
from metier.capabilities.protocol import TaskState
from metier.definitions.skills.scripts import discover_scripts
from metier.errors import ToolFailed
from metier.lazy_regex import lazy_regex
from metier.tools.process.run import Outcome, ProcessLimits
from metier.tools.scripts.contract import ScriptFailed, add_json_flag, parse_script_name
from metier.tools.scripts.runner import ScriptCall, ScriptRunner, default_environments

_PLACEHOLDER = lazy_regex(r"\{(\w+)\}")
_STDERR_SHOWN = 500


async def run_entrypoint(turn: Turn, environ: Mapping[str, str]) -> Judged:
    """Placeholders of its arguments are inputs; `{workspace}` and `{artifacts}` are known."""
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
    assert entrypoint is not None, "looked at before"
    name = parse_script_name(entrypoint.script)
    script = next((found for found in discover_scripts(turn.package.definition) if found.name == name), None)
    if script is None:
        raise ScriptFailed("not_found", f"The entrypoint names the script {entrypoint.script!r}, which is not there")
    call = ScriptCall(
        package=turn.package,
        script=script,
        args=tuple(add_json_flag([_fill(arg, turn) for arg in entrypoint.args])),
        idempotency_key=turn.idempotency_key,
        spool=turn.spool,
    )
    limit = turn.contract.timeout_seconds
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
    tail = outcome.stderr.last(_STDERR_SHOWN).strip()
    if outcome.timed_out:
        raise ScriptFailed("timeout", "The script did not end in time")
    if outcome.exit_code != 0:
        raise ScriptFailed("execution_failed", f"The script failed with exit code {outcome.exit_code}: {tail}")
    try:
        value: JsonValue = json.loads(outcome.stdout.text)
    except (ValueError, RecursionError) as error:
        raise ScriptFailed("parse_error", "The script did not answer in JSON") from error
    return value
