"""`agent skills`: what skills there are, what one of them holds, and whether files follow the rules."""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct
from msgspec.structs import replace

from metier.capabilities.contract_check import check_capability
from metier.cli.shared.context import current_workspace
from metier.cli.shared.options import AsJson, SkillsDir
from metier.cli.shared.output import JsonList, problem_as_json, warn_line, write_json, write_line
from metier.cli.skill.contracts import attach as attach_contracts
from metier.cli.skill.route import attach
from metier.cli.skill.view import reference_as_json, render_reference
from metier.cli.skill.workspace_skills import find_named_folder, open_catalog
from metier.definitions.files.walk import Walk
from metier.definitions.problems import Problem, has_errors
from metier.definitions.skills.scripts import discover_scripts, list_references, report_missing_scripts
from metier.definitions.skills.skill import (
    SkillDefinition,
    SkillReading,
    load_skill,
    parse_once,
    render_available_skills,
)
from metier.definitions.skills.skill_file import FILE_NAME, MAX_FILE_BYTES, find_skill_file, misnamed, read_skill_file
from metier.definitions.skills.sources import is_own_folder
from metier.definitions.skills.versions import find_version_problem
from metier.definitions.text.headings import Section, parse_sections, walk_sections
from metier.errors import SkillError, UsageError

_LOAD_FAILURES = ("missing_script", "needs_version")


class Verdict(Struct, frozen=True):
    path: str
    reading: SkillReading

    @property
    def failed(self) -> bool:
        return has_errors(self.reading.problems)

    @property
    def can_load(self) -> bool:
        """As `agent check` says it, without the toolsets, whose code is not run here."""
        return self.reading.skill is not None and all(each.code not in _LOAD_FAILURES for each in self.reading.problems)


def judge_paths(paths: list[Path], *, strict: bool) -> Iterator[Verdict]:
    """A verdict for each skill: of a file, of a skill's folder, or of everything below a folder.

    Raises `UsageError` when a path does not exist.
    """
    for path in paths:
        if not os.path.lexists(path):
            raise UsageError(f"Path {str(path)!r} does not exist", hint="Give a skill's folder, or a folder of skills")
    for path in paths:
        yield from _judge(path, strict=strict)


def _judge(path: Path, *, strict: bool) -> Iterator[Verdict]:
    if not path.is_dir():
        yield Verdict(str(path), _read(path, strict=strict))
        return
    found = find_skill_file(path)
    is_skill = not isinstance(found, Problem)
    # Below a skill, what lies in its own parts is material, e.g. a template; in a collection every file counts.
    walk = Walk(path, FILE_NAME, everywhere=not is_skill)
    is_any = False
    for item in walk:
        is_any = True
        yield Verdict(_as_given(path, item.path), _read(Path(item.path), strict=strict, within=item.within))
    for problem in walk.problems:
        if problem.severity == "error":
            is_any = True
            yield Verdict(_as_given(path, problem.file), SkillReading(None, (problem,)))
    if not is_any and isinstance(found, Problem):
        yield Verdict(str(path), SkillReading(None, (found,)))


def _read(file: Path, *, strict: bool, within: Path | None = None) -> SkillReading:
    if file.is_symlink() and not file.exists():
        message = f"{file.name!r} is a link to nothing"
        problem = Problem(severity="error", code="dangling_link", message=message, file=str(file), line=1)
        return SkillReading(None, (problem,))
    data = read_skill_file(file, limit=MAX_FILE_BYTES, within=within)
    if isinstance(data, Problem):
        return SkillReading(None, (data,))
    # `SKILL.md` and `../SKILL.md` have a folder with a name too.
    named = file if file.parent.name not in ("", "..") else file.resolve()
    reading = parse_once(data, file=named, strict=strict, own=_is_own(file))
    promised = _check_skill(reading.skill, strict=strict) if reading.skill else ()
    return SkillReading(reading.skill, (*misnamed(file, strict=strict), *reading.problems, *promised))


def _is_own(file: Path) -> bool:
    """Return True if a run in this workspace reads the file by the rules for its own skills."""
    workspace = current_workspace().resolve()
    inside = [folder for folder in file.resolve().parents if folder.is_relative_to(workspace)]
    return bool(inside) and all(is_own_folder(folder, workspace) for folder in inside)


def _check_skill(skill: SkillDefinition, *, strict: bool) -> tuple[Problem, ...]:
    """List the problems that `agent check` finds without running code: scripts, Metier version, contract."""
    version = find_version_problem(skill)
    return (
        *report_missing_scripts(skill),
        *((version,) if version is not None else ()),
        *check_capability(skill, strict=strict),
    )


def _as_given(root: Path, path: str) -> str:
    """The path below the root as the caller wrote it."""
    return str(root / os.path.relpath(path, root.absolute()))


app = typer.Typer(
    rich_markup_mode=None, add_completion=False, no_args_is_help=True, help="List, inspect, validate and route skills."
)
attach(app)
attach_contracts(app)


@app.command()
def inspect(
    name: Annotated[str, typer.Argument(help="The skill's name or ID, or the path of its folder.")],
    show_frontmatter: Annotated[
        bool, typer.Option("--show-frontmatter", help="Show the front matter as it was written.")
    ] = False,
    show_sections: Annotated[
        bool, typer.Option("--show-sections", help="Show the headings with their lines and bytes.")
    ] = False,
    skills_dir: SkillsDir = None,
    as_json: AsJson = False,
) -> None:
    """Show what a skill declares, which files it brings, and what is wrong with it. Runs nothing."""
    reading = _find_reading(name, skills_dir)
    skill = reading.skill
    if skill is None:
        raise SkillError(f"Skill {name!r} cannot be read", hint=_first_reason(reading))
    sections = parse_sections(skill.body, first_line=skill.body_line)
    if as_json:
        write_json(_details(skill, reading, sections))
        return
    for label, value in _rows(skill):
        if value:
            write_line(f"{label + ':':<15}{value}")
    for problem in reading.problems:
        warn_line(problem.render())
    if show_frontmatter:
        write_line(f"\n---\n{skill.header.rstrip()}\n---")
    if show_sections:
        write_line()
        for section in walk_sections(sections):
            size = section.end_byte - section.start_byte
            indent = "  " * (section.level - 1)
            write_line(
                f"{indent}{section.text}  #{section.slug}  lines {section.line}-{section.end_line}, {size} bytes"
            )


@app.command()
def validate(
    paths: Annotated[list[Path], typer.Argument(help="Skill folders, skill files, or folders of skills.")],
    strict: Annotated[
        bool, typer.Option("--strict", help="Hold the files to the Agent Skills specification, nothing less.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Say what is wrong with skills, each with its line. The exit code is 1 when there is an error."""
    shown = JsonList() if as_json else None
    judged = loaded = failed = 0
    # One by one: tens of thousands of skills would not all fit into memory.
    for verdict in judge_paths(paths, strict=strict):
        judged += 1
        loaded += verdict.can_load
        failed += verdict.failed
        if shown is not None:
            shown.add(_verdict_as_json(verdict))
        else:
            _write_verdict(verdict)
    if shown is not None:
        shown.close()
    else:
        warn_line(f"{loaded} of {judged} skills can be loaded")
    return 1 if failed else 0


@app.command("to-prompt")
def to_prompt(
    paths: Annotated[list[Path], typer.Argument(help="Skill folders or their SKILL.md files.")],
) -> None:
    """Print the skills as the `<available_skills>` block of the Agent Skills reference library."""
    skills: list[SkillDefinition] = []
    for path in paths:
        reading = load_skill((path.parent if path.is_file() else path).resolve())
        if reading.skill is None:
            raise SkillError(f"Skill in {str(path)!r} cannot be read", hint=_first_reason(reading))
        skills.append(reading.skill)
    write_line(render_available_skills(skills))


def _find_reading(name: str, skills_dir: Path | None) -> SkillReading:
    folder = find_named_folder(name)
    if folder is not None:
        return load_skill(folder)
    found = open_catalog(skills_dir).get(name)
    reading = load_skill(found.folder, id=found.id, within=found.source.within)
    return replace(reading, skill=dataclasses.replace(reading.skill, name=found.name)) if reading.skill else reading


def _first_reason(reading: SkillReading) -> str:
    return next((problem.render() for problem in reading.problems if problem.severity == "error"), "")


def _rows(skill: SkillDefinition) -> list[tuple[str, str | None]]:
    return [
        ("name", skill.name),
        ("id", skill.id if skill.id != skill.name else None),
        ("description", skill.description),
        ("version", skill.version),
        ("author", skill.author),
        ("repository", skill.repository),
        ("license", skill.license),
        ("compatibility", skill.compatibility),
        ("file", str(skill.file)),
        ("body", f"{len(skill.body.encode())} bytes, {skill.body.count(chr(10))} lines"),
        ("allowed tools", " ".join(skill.allowed_tools)),
        ("environment", " ".join(skill.permissions_env)),
        ("toolsets", " ".join(skill.toolsets)),
        ("scripts", " ".join(script.name for script in discover_scripts(skill))),
        ("references", ", ".join(render_reference(file) for file in list_references(skill))),
        ("tags", " ".join(skill.tags)),
        ("metadata", ", ".join(f"{key}={value}" for key, value in skill.metadata.items())),
    ]


def _details(skill: SkillDefinition, reading: SkillReading, sections: tuple[Section, ...]) -> dict[str, object]:
    return {
        "name": skill.name,
        "id": skill.id,
        "description": skill.description,
        "path": str(skill.file),
        "version": skill.version,
        "author": skill.author,
        "repository": skill.repository,
        "license": skill.license,
        "compatibility": skill.compatibility,
        "metadata": skill.metadata,
        "allowed_tools": skill.allowed_tools,
        "permissions_env": skill.permissions_env,
        "toolsets": skill.toolsets,
        "scripts": [script.name for script in discover_scripts(skill)],
        "references_index": [reference_as_json(file) for file in list_references(skill)],
        "tags": skill.tags,
        "frontmatter": skill.header,
        "sections": [_section_as_json(section) for section in sections],
        "problems": [problem_as_json(problem) for problem in reading.problems],
    }


def _section_as_json(section: Section) -> dict[str, object]:
    return {
        "level": section.level,
        "text": section.text,
        "slug": section.slug,
        "line": section.line,
        "end_line": section.end_line,
        "start_byte": section.start_byte,
        "end_byte": section.end_byte,
        "children": [_section_as_json(child) for child in section.children],
    }


def _verdict_as_json(verdict: Verdict) -> dict[str, object]:
    skill = verdict.reading.skill
    return {
        "path": verdict.path,
        "name": skill.name if skill else None,
        "loaded": verdict.can_load,
        "problems": [_found_as_json(problem, verdict) for problem in verdict.reading.problems],
    }


def _found_as_json(problem: Problem, verdict: Verdict) -> dict[str, object]:
    """The path of the skill's own file is told already; its code has others."""
    is_elsewhere = Path(problem.file).name != Path(verdict.path).name
    return {**problem_as_json(problem), **({"file": problem.file} if is_elsewhere else {})}


def _write_verdict(verdict: Verdict) -> None:
    if verdict.reading.skill is not None and not verdict.reading.problems:
        write_line(f"{verdict.path}: ok")
    for problem in verdict.reading.problems:
        write_line(problem.render())
