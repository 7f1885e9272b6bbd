"""`agent skill test` and `agent skill run`: try a skill as its author or as a reviewer would."""

import os
from collections import Counter
from pathlib import Path
from typing import Annotated

import anyio
import typer
from pydantic import JsonValue

from metier.cli.shared.options import AsJson, SkillsDir
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.cli.skill.catalog import SkillPlaces, find_named_folder, open_places
from metier.cli.skill.confinement import open_skill_confinement
from metier.cli.skill.listing import get_winner
from metier.cli.skill.review import count_tokens, review_skill
from metier.cli.skill.trial import Trial, build_toolbox, try_skill
from metier.definitions.problems import Problem
from metier.definitions.skills.skill import load_skill
from metier.errors import SkillError, SkillNotTrusted
from metier.evals.format.reading import read_evals
from metier.skills.activation import find_packages
from metier.skills.package import SkillPackage
from metier.skills.trust.judgement import check_trusted
from metier.tools.base import ToolContext, ToolResult

_DENIED = 5


def attach(app: typer.Typer) -> None:
    """Add the commands to the group `agent skill`."""
    app.command("test")(try_out)
    app.command("run", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})(run)


def try_out(
    name: Annotated[str, typer.Argument(help="The skill's name, or the path of its folder.")],
    no_run: Annotated[bool, typer.Option("--no-run", help="Read only; execute nothing of the skill.")] = False,
    skills_dir: SkillsDir = None,
    as_json: AsJson = False,
) -> int:
    """Try a skill's scripts and toolsets, check its evals, and say what a reviewer would.

    Each script is asked for its help; the calls that `entrypoint` and `evals/` write down are made and must answer in
    JSON. The exit code is 1 when there is an error.
    """
    places = open_places(skills_dir)
    package = _find_package(name, places)
    evals = read_evals(package.folder, skill_name=package.definition.name)
    problems = [*review_skill(package.definition), *evals.problems]
    if evals.is_empty:
        problems.append(_no_evals(package))
    trials: list[Trial] = []
    refusal = None if no_run else _find_refusal(package)
    if refusal is not None:
        problems.insert(0, refusal)
    elif not no_run:
        trials = anyio.run(try_skill, package, evals.calls, places)
    tokens = count_tokens(package.definition, places.settings.skills)
    errors = sum(not trial.ok for trial in trials) + sum(problem.severity == "error" for problem in problems)
    if as_json:
        write_json(_as_json(package, trials, problems, tokens=tokens, errors=errors))
    else:
        _write(package, trials, problems, tokens=tokens)
    return 1 if errors else 0


def run(
    skill: Annotated[str, typer.Argument(help="The skill's name, or the path of its folder.")],
    script: Annotated[str | None, typer.Argument(help="The script; left out, the scripts are listed.")] = None,
    args: Annotated[list[str] | None, typer.Argument(help="Arguments for the script, best after --.")] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Take the output as it is: no --json is added, nothing is parsed.")
    ] = False,
    skills_dir: SkillsDir = None,
) -> int:
    """Call a script the way a model does, and print the tool's JSON answer. Options stand before the skill's name.

    Trust, limits and environment are those of a run. The exit code is 0 when the answer says success, 5 when the skill
    is not trusted, else 1.
    """
    places = open_places(skills_dir)
    package = _find_package(skill, places)
    words = args or []
    result = anyio.run(_call, package, script, words[1:] if words[:1] == ["--"] else words, not text, places)
    write_json(result.output if result.output is not None else {"success": False, "message": result.error})
    if result.ok:
        return 0
    return _DENIED if result.meta.get("code") == "permission_denied" else 1


async def _call(
    package: SkillPackage, script: str | None, args: list[str], is_json: bool, places: SkillPlaces
) -> ToolResult:
    toolbox = build_toolbox(package, places.settings.skills, await open_skill_confinement(places))
    context = ToolContext(workspace=Path.cwd())
    arguments: dict[str, JsonValue] = {"skill_name": package.definition.name}
    if script is None:
        return await toolbox.call("script_list", arguments, context)
    arguments["script_name"] = script
    if args == ["--help"]:
        return await toolbox.call("script_help", arguments, context)
    return await toolbox.call("script_run", {**arguments, "args": list(args), "json": is_json}, context)


def _find_package(name: str, places: SkillPlaces) -> SkillPackage:
    """A path is a folder that the person points at, like `--skills-dir`; a name is looked up as a run would."""
    folder = find_named_folder(name)
    if folder is None:
        return get_winner(places.roots, name)
    # What is installed stays as trusted as it is, however it is named.
    known = [package for package in find_packages(places.roots).packages if package.folder.resolve() == folder]
    if known:
        return known[0]
    reading = load_skill(folder)
    if reading.skill is None:
        raise SkillError(f"Skill in {name!r} cannot be loaded", hint=reading.problems[0].render())
    return SkillPackage(definition=reading.skill, folder=folder, source="directory")


def _find_refusal(package: SkillPackage) -> Problem | None:
    try:
        check_trusted(package)
    except SkillNotTrusted as error:
        message = f"{error.message}: nothing of it was executed"
        return Problem(severity="error", code="not_trusted", message=message, hint=error.hint)
    return None


def _no_evals(package: SkillPackage) -> Problem:
    hint = 'Write what people ask for and what they expect into evals/evals.json: {"evals": [{"prompt": …}]}'
    return Problem(
        severity="warning", code="no_evals", message="There are no evals", file=str(package.folder), hint=hint
    )


def _write(package: SkillPackage, trials: list[Trial], problems: list[Problem], *, tokens: dict[str, int]) -> None:
    write_line(f"{package.definition.name}  [{package.source}]  {package.folder}")
    for trial in trials:
        note = f": {trial.warning or trial.message}" if trial.warning or trial.message else ""
        write_line(f"  {'ok' if trial.ok else 'FAILED':<8}{trial.name}{note}")
    for problem in problems:
        write_line(f"  {_shorten(problem, package).render()}")
    costs = f"{tokens['catalog']} in every prompt, {tokens['overview']} once in charge, {tokens['body']} whole body"
    write_line(f"  tokens: {costs}")
    counts = Counter(problem.severity for problem in problems)
    failed = sum(not trial.ok for trial in trials)
    passed = f"{len(trials) - failed} of {len(trials)} trials passed"
    warn_line(f"{passed}, {counts['error']} errors, {counts['warning']} warnings")


def _shorten(problem: Problem, package: SkillPackage) -> Problem:
    """With the file as seen from the skill: every line would begin with the same folder."""
    short = problem.file.removeprefix(f"{package.folder}{os.sep}")
    return Problem(
        severity=problem.severity,
        code=problem.code,
        message=problem.message,
        file="" if short == str(package.folder) else short,
        line=problem.line,
        hint=problem.hint,
    )


def _as_json(
    package: SkillPackage, trials: list[Trial], problems: list[Problem], *, tokens: dict[str, int], errors: int
) -> dict[str, object]:
    return {
        "name": package.definition.name,
        "path": str(package.folder),
        "source": package.source,
        "passed": errors == 0,
        "tokens": tokens,
        "trials": [
            {"name": trial.name, "ok": trial.ok, "message": trial.message, "warning": trial.warning} for trial in trials
        ],
        "problems": [
            {
                "severity": problem.severity,
                "code": problem.code,
                "file": problem.file,
                "line": problem.line,
                "message": problem.message,
                "hint": problem.hint,
            }
            for problem in problems
        ],
    }
