"""`agent policy`: explain decisions, check the examples of rules, and backtest rules on past runs."""

import json
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Annotated, NamedTuple, cast

import anyio
import typer
from msgspec import to_builtins
from pydantic import JsonValue

from metier.approval.judge import Explanation, RulePolicy
from metier.cli.run.approval_dialog import parse_arguments
from metier.cli.shared.command_options import AsJson, Config, build_group
from metier.cli.shared.context import current_workspace
from metier.cli.shared.open_host import open_host
from metier.cli.shared.open_runs import in_runtime
from metier.cli.shared.output import warn_line, write_json, write_json_line, write_line
from metier.cli.skill.workspace_skills import build_places, open_catalog
from metier.definitions.policy_file import read_policy_file
from metier.definitions.workspace import load_workspace
from metier.errors import ConfigError, MetierError, UsageError
from metier.runtime.build import list_all_tools
from metier.runtime.history.comparison import backtest_past_runs
from metier.runtime.host import Host
from metier.runtime.present_policy import build_present_policy, explain_call
from metier.runtime.workspace.agents import choose_built_in
from metier.runtime.workspace.policy import build_definition_policy, build_rules_policy, open_reader, read_skill_scope
from metier.runtime.workspace.skill_catalog import get_skills
from metier.telemetry.amounts import format_count
from metier.tools.toolbox import Toolbox

app = build_group("Explain and backtest permission rules.")

Root = Annotated[Path | None, typer.Option("--root", help="Base of relative paths. Default: the workspace.")]
_MARKDOWN = ".md"


@app.command()
def explain(
    tool: Annotated[str, typer.Argument(help="Tool name.")] = "",
    *,
    args: Annotated[str, typer.Option("--args", help="Arguments as a JSON object.")] = "{}",
    agent: Annotated[str, typer.Option("--agent", help="Evaluate for this agent.")] = "",
    rules: Annotated[Path | None, typer.Option("--rules", help="Use only the rules in this file.")] = None,
    skill: Annotated[str, typer.Option("--skill", help="Evaluate while this skill is active.")] = "",
    root: Root = None,
    batch: Annotated[str, typer.Option("--batch", help="Read {tool, args, rules?} lines from a file or `-`.")] = "",
    as_json: AsJson = False,
    config: Config = None,
) -> int:
    """Explain the decision for a tool call."""
    if agent and rules:
        raise UsageError("--agent and --rules are mutually exclusive", hint="Use one of them")
    host = root.resolve() if root is not None else current_workspace()
    # Lazy, because lines of a batch can name their own rules.
    default = cache(lambda: _open_policy(agent, rules, root=host, config=config))
    if batch:
        return _explain_batch(batch, default, root=host)
    if not tool:
        raise UsageError("No tool given", hint='For example, `agent policy explain Read --args \'{"path": "a.txt"}\'`')
    explanation = _explain_one(default(), tool, _parse_args(args, "--args"), skill=skill)
    if as_json:
        write_json(as_object(explanation))
    else:
        _write_explanation(explanation)
    return 0


@app.command("test", hidden=True)
def try_examples(*, as_json: AsJson = False, config: Config = None) -> None:
    """Check permission rules and their examples.

    Exit code 2: a rule is invalid, or an example has another result.
    """
    checked = try_rules(open_host(config))
    if as_json:
        write_json({"rules": checked.rules, "examples": checked.examples, "ok": True})
    else:
        write_line(render_rules(checked))


class CheckedRules(NamedTuple):
    rules: int
    examples: int


def render_rules(checked: CheckedRules) -> str:
    return f"{format_count(checked.rules, 'rule')} and {format_count(checked.examples, 'example')} passed"


def try_rules(host: Host) -> CheckedRules:
    """Check all rules. Raises `ConfigError` with every invalid rule and every failing example."""
    packages, _ = get_skills(host)
    reader = open_reader(host.workspace, Toolbox(list_all_tools(packages, host)))
    workspace = load_workspace(host.workspace, open_catalog(build_places(None, host.settings, host.trust)))
    reader.tasks = frozenset(workspace.tasks)
    policy = reader.read_policy(
        read_policy_file(host.workspace).decode("utf-8", "replace"),
        file=str(host.workspace / ".agent/policy.yaml"),
    )
    agents = [reader.read_agent(agent) for agent in workspace.agents.values()]
    steps = [reader.read_step(step) for task in workspace.tasks.values() for step in task.steps]
    skills = [read_skill_scope(reader, package) for package in packages]
    reader.check("A rule")
    scopes = (policy, *agents, *steps, *skills)
    count = sum(len(scope.tools.rules) + len(scope.tasks.rules) for scope in scopes)
    return CheckedRules(rules=count, examples=reader.examples)


@app.command("backtest")
def backtest_runs(
    *,
    runs: Annotated[int, typer.Option("--runs", min=1, max=1_000_000, help="Number of runs, newest first.")] = 20,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show calls of past runs that rules now decide differently."""
    host = open_host(config)

    found = in_runtime(host, lambda runtime: backtest_past_runs(runtime, runs=runs))
    if as_json:
        write_json(to_builtins(found))
        return
    for change in found.changes:
        call = f"{change.tool} {json.dumps(change.arguments, ensure_ascii=False)}"
        write_line(f"{change.run_id} {change.step_id}  {change.was} -> {change.now}  {call}")
        write_line(f"    {change.reason}")
    warn_line(
        f"{len(found.changes)} of {format_count(found.calls, 'call')} in {format_count(found.runs, 'run')} would change"
    )


def as_object(explanation: Explanation) -> dict[str, JsonValue]:
    winner = explanation.winner
    rule = winner.rule if winner else None
    return {
        "tool": explanation.tool,
        "arguments": dict(explanation.arguments),
        "verdict": explanation.verdict.decision,
        "risk": explanation.risk,
        "read_only": explanation.verdict.read_only,
        "reason": explanation.verdict.reason,
        "scope": winner.scope.kind if winner else "profile",
        "rule": None if rule is None else {"number": rule.number, "file": rule.file, "line": rule.line},
        "scopes": [
            {
                "scope": outcome.scope.kind,
                "name": outcome.scope.name,
                "verdict": outcome.decision,
                "rule": None if outcome.rule is None else outcome.rule.number,
                "line": None if outcome.rule is None else outcome.rule.line,
                "note": outcome.note,
            }
            for outcome in explanation.outcomes
        ],
    }


def _explain_one(policy: RulePolicy, tool: str, arguments: dict[str, JsonValue], *, skill: str = "") -> Explanation:
    return anyio.run(partial(explain_call, policy, tool, arguments, skill=skill))


def _explain_batch(source: str, default: Callable[[], RulePolicy], *, root: Path) -> int:
    """Print one decision per line, in order. Invalid lines print an error, and the exit code is 2."""

    # Lines of a batch usually share their rules, and building a policy compiles all of them.
    @cache
    def build(text: str) -> RulePolicy:
        return _open_inline(json.loads(text), root=root)

    with nullcontext(sys.stdin) if source == "-" else Path(source).open(encoding="utf-8") as stream:
        return _explain_lines(stream, default, build)


def _explain_lines(stream: Iterable[str], default: Callable[[], RulePolicy], build: Callable[[str], RulePolicy]) -> int:
    exit_code = 0
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        try:
            answer = _explain_line(line, default, build)
        except MetierError as error:
            exit_code = 2
            problems = [problem.render() for problem in error.problems] if isinstance(error, ConfigError) else []
            answer = {"error": error.message, "hint": error.hint, "line": number, "problems": cast(JsonValue, problems)}
        write_json_line(answer)
        # The caller may be a program that waits for each answer before it sends the next line.
        sys.stdout.flush()
    return exit_code


def _explain_line(
    line: str, default: Callable[[], RulePolicy], build: Callable[[str], RulePolicy]
) -> dict[str, JsonValue]:
    call = _parse_args(line, "A line")
    unknown = call.keys() - {"tool", "args", "rules"}
    tool, arguments = call.get("tool"), call.get("args", {})
    if unknown or not isinstance(tool, str) or not isinstance(arguments, dict):
        raise UsageError('A line must be {"tool": …, "args": {…}}', hint="`rules` may name a file, or hold rules")
    rules = call.get("rules")
    policy = default() if rules is None else build(json.dumps(rules))
    return as_object(_explain_one(policy, tool, arguments))


def _open_inline(rules: JsonValue, *, root: Path) -> RulePolicy:
    if isinstance(rules, str):
        return _open_file(Path(rules), root=root)
    # JSON is valid YAML. Its strings are quoted, so YAML does not turn one into another type.
    return build_rules_policy(json.dumps(rules), file="", root=root)


def _open_policy(agent: str, rules: Path | None, *, root: Path, config: Config) -> RulePolicy:
    if rules is not None:
        return _open_file(rules, root=root)
    host, agent = choose_built_in(open_host(config), agent)
    return build_present_policy(host, agent or host.settings.runtime.agent or "", root=root)


def _open_file(file: Path, *, root: Path) -> RulePolicy:
    if file.suffix.lower() == _MARKDOWN:
        return build_definition_policy(file, root=root)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"File {str(file)!r} cannot be read: {reason}", hint="Pass a YAML file with rules") from error
    return build_rules_policy(text, file=str(file), root=root)


def _parse_args(text: str, what: str) -> dict[str, JsonValue]:
    try:
        value = parse_arguments(text)
    except ValueError as error:
        raise UsageError(f"{what} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{what} must be a JSON object")
    return value


def _write_explanation(explanation: Explanation) -> None:
    write_line(f"{explanation.verdict.decision}: {explanation.verdict.reason or 'no rule applies'}")
    if explanation.risk:
        write_line(f"  risk       {explanation.risk}")
    write_line(f"  arguments  {json.dumps(dict(explanation.arguments), ensure_ascii=False)}")
    for outcome in explanation.outcomes:
        word = outcome.decision or "silent"
        where = f"rule {outcome.rule.number} ({outcome.rule.location})" if outcome.rule else ""
        note = " ".join((where, outcome.note)).strip()
        write_line(f"  {outcome.scope.kind:<6} {outcome.scope.name:<12} {word:<7} {note}".rstrip())
