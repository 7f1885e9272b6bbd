"""`agent agents`: list the workspace's agents, and show an agent's effective model, tools, skills and rules."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import anyio
import typer
from msgspec import Struct, to_builtins

from metier.cli.shared.command_options import AsJson, Config, SkillsDir, build_group
from metier.cli.shared.open_host import open_host
from metier.cli.shared.output import problem_as_json, warn_line, write_json, write_line
from metier.definitions.agent import AgentDefinition, AgentReading, load_agent
from metier.definitions.names import fold_id
from metier.definitions.problems import Problem, has_errors
from metier.runtime.host import Host
from metier.runtime.present_policy import AgentReport, Named, report_agent
from metier.runtime.validation import get_all_problems
from metier.runtime.workspace.agents import BUILT_IN_NAME, choose_built_in
from metier.runtime.workspace.lookup import list_definitions, list_duplicates

app = build_group("List and show agents.")


class _Row(Struct, frozen=True):
    id: str
    reading: AgentReading
    is_default: bool
    problems: tuple[Problem, ...]
    """Includes references to tools, skills and tasks that don't exist."""

    @property
    def is_usable(self) -> bool:
        return self.reading.agent is not None and not has_errors(self.problems)


@app.command("list")
def list_agents(*, as_json: AsJson = False, config: Config = None) -> int:
    """List agents.

    Exit code 1: an agent is invalid.
    """
    host = open_host(config)
    rows = list(_read_rows(host))
    duplicates = list_duplicates(host.workspace, "agent")
    for problem in duplicates:
        warn_line(problem.render())
    if as_json:
        write_json([_row_as_json(row) for row in rows])
    else:
        for row in rows:
            _write_row(row)
        if not rows and not duplicates:
            warn_line("No agents defined; runs use the built-in agent")
    return 0 if all(row.is_usable for row in rows) and not duplicates else 1


@app.command()
def show(
    agent: Annotated[str, typer.Argument(help=f"Agent ID or `{BUILT_IN_NAME}`. Default: the default agent.")] = "",
    *,
    model: Annotated[str, typer.Option("--model", help="Resolve as if this model was requested.")] = "",
    skills_dir: SkillsDir = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show an agent's effective model, rules, tools and skills."""
    host = open_host(config, {"skills.dir": str(skills_dir)} if skills_dir else {})
    host, agent = choose_built_in(host, agent)
    report = anyio.run(lambda: report_agent(host, agent or host.settings.runtime.agent or "", model=model))
    if as_json:
        write_json(_as_json(report))
    else:
        _write(report)


def _read_rows(host: Host) -> Iterator[_Row]:
    default = fold_id(host.settings.runtime.agent or "")
    listed = list_definitions(host.workspace, "agent")
    problems = get_all_problems(host, "agent")
    for key, found in sorted(listed.items()):
        reading = load_agent(Path(found.path), id=found.id, within=found.within)
        yield _Row(found.id, reading, is_default=key == default, problems=problems[found.id])


def _row_as_json(row: _Row) -> dict[str, object]:
    agent = row.reading.agent
    return {
        "id": row.id,
        "loaded": agent is not None,
        "usable": row.is_usable,
        "is_default": row.is_default,
        "name": agent.name if agent else "",
        "description": agent.description if agent else "",
        "model": agent.model if agent else None,
        "allowed_models": agent.allowed_models if agent else (),
        "profile": (agent.profile or "guarded") if agent else None,
        "problems": [problem_as_json(problem) for problem in row.problems],
    }


def _write_row(row: _Row) -> None:
    agent = row.reading.agent
    mark = " (default)" if row.is_default else ""
    if agent is None:
        write_line(f"{row.id}{mark}  cannot be loaded")
    else:
        about = agent.description or agent.name
        about = about if row.is_usable else f"cannot be used: {about}"
        write_line(f"{row.id}{mark}  {_name_models(agent)}, {agent.profile or 'guarded'}  {about}")
    for problem in row.problems:
        write_line(f"  {problem.render()}")


def _name_models(agent: AgentDefinition) -> str:
    models = dict.fromkeys((agent.model, *agent.allowed_models))
    return " or ".join(model for model in models if model) or "any model"


def _as_json(report: AgentReport) -> dict[str, object]:
    agent, model = report.agent, report.agent.model
    return {
        "id": agent.id,
        "file": str(agent.definition.file) if agent.definition else None,
        "name": agent.definition.name if agent.definition else "",
        "description": agent.definition.description if agent.definition else "",
        "model": {
            "provider": model.provider,
            "name": model.name,
            "temperature": model.temperature,
            "max_tokens": model.max_tokens,
            "may_be": list(agent.models),
            "fallback_models": list(model.fallback_models),
        },
        "profile": agent.profile,
        "web": {"allow": list(agent.web.allowed_domains), "deny": list(agent.web.denied_domains)},
        "tools": [to_builtins(each) for each in report.tools],
        "skills": [to_builtins(each) for each in report.skills],
        "tasks": [to_builtins(each) for each in report.tasks],
        "rules": [
            {
                "scope": scope,
                "number": rule.number,
                "subject": rule.subject,
                "verdict": rule.decision,
                "file": rule.file,
                "line": rule.line,
            }
            for scope, rule in report.rules
        ],
        "missing_tools": list(report.missing),
        "problems": [problem_as_json(problem) for problem in agent.problems],
    }


def _write(report: AgentReport) -> None:
    agent, model = report.agent, report.agent.model
    write_line(f"agent:    {agent.id or BUILT_IN_NAME}" + (f"  {agent.definition.file}" if agent.definition else ""))
    limits = f"at most {model.max_tokens} tokens"
    heat = "" if model.temperature is None else f", temperature {model.temperature:g}"
    write_line(f"model:    {model.provider}/{model.name}, {limits}{heat}")
    if agent.models:
        write_line(f"models:   {', '.join(agent.models)}")
    if model.fallback_models:
        write_line(f"fallback: {', '.join(model.fallback_models)}")
    write_line(f"profile:  {agent.profile}")
    for word, domains in (("allow", agent.web.allowed_domains), ("deny", agent.web.denied_domains)):
        if domains:
            write_line(f"web:      {word} {', '.join(domains)}")
    for kind, listed in (("tool", report.tools), ("skill", report.skills), ("task", report.tasks)):
        _write_named(kind, listed)
    for name in report.missing:
        write_line(f"tool:     {name}  unavailable")
    for scope, rule in report.rules:
        write_line(f"rule:     {scope} {rule.number}: {rule.decision} {rule.subject}  ({rule.location})")
    for problem in agent.problems:
        write_line(problem.render())


def _write_named(kind: str, listed: Sequence[Named]) -> None:
    label = f"{kind}:".ljust(9)
    for each in listed:
        where = "inherited" if each.line is None else f"AGENT.md line {each.line}"
        note = f", {each.note}" if each.note else ""
        write_line(f"{label} {each.name}  {each.source}, {where}{note}")
    if not listed:
        write_line(f"{label} none")
