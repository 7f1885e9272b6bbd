"""`agent skill test` and `agent skill run`: try a skill as its author or a reviewer would.

The review reads files and executes nothing; the trial runs each script's help, checks the JSON it promises, and loads
each toolset.
"""

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote

import anyio
import typer
from msgspec import Struct, to_builtins
from msgspec.structs import replace
from pydantic import JsonValue

from metier.cli.shared.command_options import AsJson, SkillsDir
from metier.cli.shared.context import current_workspace
from metier.cli.shared.output import located_as_json, warn_line, write_json, write_line
from metier.cli.skill.skill_status import get_winner, open_skill_confinement
from metier.cli.skill.workspace_skills import SkillPlaces, find_named_folder, open_places
from metier.context.disclosure import DisclosureLimits, SkillText, disclose_overview, render_catalog
from metier.context.tokens import estimate_tokens
from metier.definitions.placeholders import fill_arguments
from metier.definitions.problems import Problem, Severity, has_errors
from metier.definitions.skills.scripts import Script, discover_scripts
from metier.definitions.skills.skill import SkillDefinition, load_skill
from metier.errors import SkillError, SkillNotTrusted, ToolFailed
from metier.evals.cases import ScriptCase
from metier.evals.eval_files import read_evals
from metier.skills.activation import get_packages
from metier.skills.capabilities_report import build_report
from metier.skills.options import SkillsOptions
from metier.skills.package import SkillPackage, list_files
from metier.skills.skill_trust import check_trusted, digest_tree
from metier.telemetry.amounts import format_count
from metier.tools.base import ToolContext, ToolResult
from metier.tools.process.sandbox.confinement import Confinement
from metier.tools.scripts.active_scripts import ScriptCatalog, ScriptLimits
from metier.tools.scripts.runner import ScriptRunner, default_environments, read_script
from metier.tools.scripts.script_tools import build_script_tools
from metier.tools.toolbox import Toolbox
from metier.tools.toolsets.loader import load_toolsets

MAX_BODY_LINES = 500
MAX_BODY_TOKENS = 5_000
"""The specification's recommendation. Longer texts belong in references."""
SHORT_DESCRIPTION = 40
_WHEN = re.compile(r"\b(use|used|when|whenever|if|for|before|after|asks?|trigger\w*|needs?)\b", re.IGNORECASE)
_PERSON = re.compile(r"^\s*(I|You|We)\b")
_LINK = re.compile(r"\[[^\]\n]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
_MENTION = re.compile(r"`(?:\./)?((?:references|assets|scripts|templates)/[^`\s<>*{}\[\]$]+)")
# URLs, anchors, absolute paths and placeholders, which are not checked.
_ADDRESS = re.compile(r"^(?:[a-zA-Z][a-zA-Z0-9+.-]*:|#|/|\$|\{)")
_FENCE = re.compile(r"^\s*(```|~~~)")
_METADATA = re.compile(rb"^# /// script\s*$", re.MULTILINE)


def review_skill(skill: SkillDefinition) -> list[Problem]:
    """List all remarks about a skill, errors first."""
    found = [
        *_review_form(skill),
        *_review_description(skill),
        *_review_body(skill),
        *_review_mentions(skill),
        *_review_scripts(skill),
        *_review_bytes(skill),
    ]
    return sorted(found, key=lambda problem: problem.severity != "error")


def count_tokens(skill: SkillDefinition, options: SkillsOptions) -> dict[str, int]:
    """Count the skill's tokens in a prompt: always, when it is active, and its whole body."""
    text = SkillText(
        name=skill.name,
        description=skill.description,
        body=skill.body,
        folder=skill.folder.name,
        files=tuple(file.path for file in list_files(skill.folder)),
        scripts=tuple(script.name for script in discover_scripts(skill)),
    )
    overview = disclose_overview(text, DisclosureLimits(inline_body_tokens=options.inline_body_tokens))
    return {
        "catalog": estimate_tokens(render_catalog([(skill.name, skill.description)], [])),
        "overview": sum(file.tokens for file in overview.files),
        "body": estimate_tokens(skill.body),
    }


def _review_form(skill: SkillDefinition) -> Iterator[Problem]:
    yield from load_skill(skill.folder, id=skill.id).problems
    strict = load_skill(skill.folder, strict=True, id=skill.id).problems
    if has_errors(strict):
        reason = next(problem for problem in strict if problem.severity == "error")
        message = f"Tools that apply the specification strictly may reject it: {reason.message}"
        hint = "`agent skills validate --strict` lists all deviations"
        yield _remark(skill, "not_strict", message, line=reason.line, hint=hint)


def _review_description(skill: SkillDefinition) -> Iterator[Problem]:
    text = " ".join(skill.description.split())
    if len(text) < SHORT_DESCRIPTION:
        hint = "Describe what it does and when to use it; models choose a skill by this text"
        yield _remark(skill, "description_short", f"The description has {len(text)} characters", hint=hint)
    # The words are English, so texts in other scripts are not judged.
    elif text.isascii() and not _WHEN.search(text):
        hint = "Add a sentence like: Use it when a task asks for …"
        yield _remark(skill, "description_when", "The description does not say when to use the skill", hint=hint)
    if _PERSON.match(text):
        hint = "Write what it does: Extracts text from …"
        yield _remark(skill, "description_person", "The description addresses the reader", hint=hint)
    if not skill.license:
        hint = "Without a license others cannot use it: add 'license: Apache-2.0' or another license"
        yield _remark(skill, "no_license", "The skill has no license", hint=hint)


def _review_body(skill: SkillDefinition) -> Iterator[Problem]:
    lines, tokens = skill.body.count("\n"), estimate_tokens(skill.body)
    if not skill.body.strip():
        yield _remark(skill, "body_empty", "The skill has no instructions", hint="Describe the work in steps")
    if lines > MAX_BODY_LINES or tokens > MAX_BODY_TOKENS:
        message = f"The body has {lines} lines, about {tokens} tokens"
        hint = f"Keep it below {MAX_BODY_LINES} lines and {MAX_BODY_TOKENS} tokens; move detail into references/"
        yield _remark(skill, "body_long", message, hint=hint)


def _review_mentions(skill: SkillDefinition) -> Iterator[Problem]:
    named: set[str] = set()
    for number, line in _prose(skill):
        links = {_local_path(target) for target in _LINK.findall(line) if not _ADDRESS.match(target)}
        mentions = {mention.rstrip(".,;:)").partition("#")[0] for mention in _MENTION.findall(line)}
        named |= links | mentions
        for path in sorted(links):
            if path and not _is_inside(skill.folder, path):
                yield _remark(skill, "link_broken", f"The link to {path!r} is broken", severity="error", line=number)
        for path in sorted(mentions - links):
            if not _is_inside(skill.folder, path):
                yield _remark(skill, "file_missing", f"The text names {path!r}, which does not exist", line=number)
    for file in list_files(skill.folder):
        if file.path.startswith("references/") and file.path not in named and file.path not in skill.body:
            message = f"The body does not mention {file.path!r}"
            yield _remark(skill, "file_unnamed", message, hint="Mention it and when to read it, or remove it")


def _review_scripts(skill: SkillDefinition) -> Iterator[Problem]:
    for script in discover_scripts(skill):
        try:
            text = read_script(script.path)
        except ToolFailed:
            continue  # the trial reports it
        if not _METADATA.search(text.replace(b"\r\n", b"\n")):
            hint = "Start it with '# /// script' so that it runs the same everywhere"
            name = f"scripts/{script.path.name}"
            yield _remark(skill, "script_metadata", f"{name!r} does not declare its dependencies (PEP 723)", hint=hint)


def _review_bytes(skill: SkillDefinition) -> Iterator[Problem]:
    try:
        report = build_report(skill, digest_tree(skill.folder))
    except SkillError as error:
        hint = error.hint or "It could not be installed like this"
        yield _remark(skill, "not_plain", error.message, severity="error", hint=hint)
        return
    for place in report.hidden_characters:
        hint = "Remove it: users do not see it, but models read it"
        yield _remark(skill, "hidden_character", f"Hidden character in {place}", severity="error", hint=hint)
    for name in report.large_file_pointers:
        hint = "Commit the file itself; pointers are not followed"
        yield _remark(skill, "large_file_pointer", f"{name!r} is a Git LFS pointer", hint=hint)
    for name in report.binaries:
        hint = "Include the source so that it can be reviewed"
        yield _remark(skill, "machine_code", f"{name!r} is a binary", hint=hint)


def _prose(skill: SkillDefinition) -> Iterator[tuple[int, str]]:
    """Yield the lines outside of code blocks with their line numbers."""
    inside = False
    for number, line in enumerate(skill.body.split("\n"), start=skill.body_line):
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            yield number, line


def _local_path(target: str) -> str:
    return unquote(target.partition("#")[0].partition("?")[0]).removeprefix("./")


def _is_inside(folder: Path, path: str) -> bool:
    try:
        target = (folder / path).resolve()
        return target.is_relative_to(folder.resolve()) and target.exists()
    # `ValueError` is raised for a path with NUL, which a link can contain as `%00`.
    except (OSError, ValueError):
        return False


def _remark(
    skill: SkillDefinition,
    code: str,
    message: str,
    *,
    severity: Severity = "warning",
    line: int | None = None,
    hint: str = "",
) -> Problem:
    return Problem(severity=severity, code=code, message=message, file=str(skill.file), line=line, hint=hint)


_SAMPLE = "# Sample\n\nThis folder exists for one trial. - [ ] Nothing is left to do here.\n"


class Trial(Struct, frozen=True, kw_only=True):
    """The result of one trial."""

    name: str
    ok: bool
    message: str = ""
    warning: str = ""


def build_toolbox(package: SkillPackage, options: SkillsOptions, confinement: Confinement) -> Toolbox:
    """Build the script tools of one skill, with the limits of the settings."""
    limits = ScriptLimits(
        timeout_seconds=options.script_timeout_seconds,
        max_output_bytes=options.max_script_output_bytes,
    )
    runner = ScriptRunner(
        environments=default_environments(os.environ, workspace=current_workspace()),
        environ=os.environ,
        confinement=confinement,
    )
    return Toolbox(build_script_tools(ScriptCatalog([package]), runner, limits))


async def try_skill(package: SkillPackage, calls: list[ScriptCase], places: SkillPlaces) -> list[Trial]:
    """Try every script's help, every documented call, and every toolset."""
    confinement = await open_skill_confinement(places)
    with tempfile.TemporaryDirectory(prefix="agent-skill-test-") as folder:
        opened = replace(confinement, writable=(*confinement.writable, Path(folder)))
        toolbox = build_toolbox(package, places.settings.skills, opened)
        trials = [await _try_help(toolbox, package, script) for script in discover_scripts(package.definition)]
        for name, script, args in _list_calls(package, calls, Path(folder)):
            if missing := [arg for arg in args if arg.startswith("{") and arg.endswith("}")]:
                trials.append(Trial(name=name, ok=True, warning=f"not tried: {missing[0]} is only known during a run"))
            else:
                trials.append(await _try_json(toolbox, package, name=name, script=script, args=args))
    return [*trials, *(await _try_toolsets(package, confinement))]


async def _try_help(toolbox: Toolbox, package: SkillPackage, script: Script) -> Trial:
    name = f"scripts/{script.path.name} --help"
    arguments: dict[str, JsonValue] = {"skill_name": package.definition.name, "script_name": script.name}
    result = await toolbox.call("script_help", arguments, ToolContext(workspace=package.folder))
    if not result.ok:
        return Trial(name=name, ok=False, message=result.error or _NO_REASON)
    text = str(_get_result(result).get("help_text", ""))
    if not text:
        return Trial(name=name, ok=False, message="It prints nothing")
    return Trial(name=name, ok=True, warning="" if "--json" in text else "it does not mention --json")


async def _try_json(toolbox: Toolbox, package: SkillPackage, *, name: str, script: str, args: tuple[str, ...]) -> Trial:
    arguments: dict[str, JsonValue] = {
        "skill_name": package.definition.name,
        "script_name": script,
        "args": list(args),
        "json": True,
    }
    result = await toolbox.call("script_run", arguments, ToolContext(workspace=package.folder))
    return Trial(name=name, ok=result.ok, message="" if result.ok else result.error or _NO_REASON)


async def _try_toolsets(package: SkillPackage, confinement: Confinement) -> list[Trial]:
    if not package.definition.toolsets:
        return []
    reading = await load_toolsets([package], os.environ, confinement=confinement)
    try:
        failed = {failure.toolset: failure.message for _, failure in reading.failures}
        # The process that loads the toolsets failed, so no toolset has a failure of its own.
        if "" in failed:
            return [Trial(name="toolsets", ok=False, message=failed[""])]
        names = ", ".join(tool.info.name for tool in reading.tools)
        return [
            Trial(
                name=f"toolset {toolset}",
                ok=toolset not in failed,
                message=failed.get(toolset, ""),
                warning="" if names else "it offers no tools",
            )
            for toolset in package.definition.toolsets
        ]
    finally:
        await reading.aclose()


def _list_calls(
    package: SkillPackage, cases: list[ScriptCase], folder: Path
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """List the calls with name, script and arguments, placeholders filled in."""
    entrypoint = package.definition.entrypoint
    if entrypoint is not None:
        (folder / "sample.md").write_text(_SAMPLE, "utf-8")
        known = {
            "workspace": str(folder),
            "artifacts": str(folder),
            "task": package.definition.description,
            "keywords": "sample",
        }
        args = fill_arguments(entrypoint.args, known)
        yield f"entrypoint {entrypoint.script} --json", entrypoint.script, args
    for case in cases:
        yield f"{case.file} case {case.number}: {case.script} --json", case.script, case.args


def _get_result(result: ToolResult) -> dict[str, JsonValue]:
    inner = result.output.get("result") if isinstance(result.output, dict) else None
    return inner if isinstance(inner, dict) else {}


_DENIED = 5
_NO_REASON = "It failed"


def try_out(
    name: Annotated[str, typer.Argument(help="Skill name or folder.")],
    no_run: Annotated[bool, typer.Option("--no-run", help="Don't run any code of the skill.")] = False,
    skills_dir: SkillsDir = None,
    as_json: AsJson = False,
) -> int:
    """Test a skill's scripts and toolsets, and review it.

    Calls defined by `entrypoint` and `evals/` must return JSON. Exit code 1: there is an error.
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
    skill: Annotated[str, typer.Argument(help="Skill name or folder.")],
    script: Annotated[str | None, typer.Argument(help="Script name. Default: list the scripts.")] = None,
    args: Annotated[list[str] | None, typer.Argument(help="Arguments for the script, after `--`.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Don't pass --json to the script or parse its output.")] = False,
    skills_dir: SkillsDir = None,
) -> int:
    """Run a skill's script as a model would.

    Trust, limits and environment are those of a run. Exit codes: 0 success, 5 the skill is not trusted, 1 any
    other error.
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
    context = ToolContext(workspace=current_workspace())
    arguments: dict[str, JsonValue] = {"skill_name": package.definition.name}
    if script is None:
        return await toolbox.call("script_list", arguments, context)
    arguments["script_name"] = script
    if args == ["--help"]:
        return await toolbox.call("script_help", arguments, context)
    return await toolbox.call("script_run", {**arguments, "args": list(args), "json": is_json}, context)


def _find_package(name: str, places: SkillPlaces) -> SkillPackage:
    """Find a skill by path, like `--skills-dir`, or by name, like a run."""
    folder = find_named_folder(name)
    if folder is None:
        return get_winner(places.roots, name)
    # An installed skill keeps its trust, also if it is named by its path.
    known = [package for package in get_packages(places.roots).packages if package.folder.resolve() == folder]
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
        message = f"{error.message}; no code was run"
        return Problem(severity="error", code="not_trusted", message=message, hint=error.hint)
    return None


def _no_evals(package: SkillPackage) -> Problem:
    hint = 'Add example requests and expected results to evals/evals.json: {"evals": [{"prompt": …}]}'
    return Problem(
        severity="warning", code="no_evals", message="The skill has no evals", file=str(package.folder), hint=hint
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
    warn_line(f"{passed}, {format_count(counts['error'], 'error')}, {format_count(counts['warning'], 'warning')}")


def _shorten(problem: Problem, package: SkillPackage) -> Problem:
    """Render a problem with its file relative to the skill, because all share the folder."""
    short = problem.file.removeprefix(f"{package.folder}{os.sep}")
    return replace(problem, file="" if short == str(package.folder) else short)


def _as_json(
    package: SkillPackage, trials: list[Trial], problems: list[Problem], *, tokens: dict[str, int], errors: int
) -> dict[str, object]:
    return {
        "name": package.definition.name,
        "path": str(package.folder),
        "source": package.source,
        "passed": errors == 0,
        "tokens": tokens,
        "trials": [to_builtins(trial) for trial in trials],
        "problems": [located_as_json(problem) for problem in problems],
    }
