"""`agent skills show`: a skill's origin, trust, capabilities, declarations and problems.

`agent skills info` and `agent skills inspect` are its two halves under their earlier names.
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import anyio
import typer
from msgspec.structs import replace

from metier.cli.shared.command_options import AsJson, SkillsDir
from metier.cli.shared.output import problem_as_json, warn_line, write_json, write_line
from metier.cli.skill.skill_status import describe_package, get_package, list_tool_names
from metier.cli.skill.view import reference_as_json, render_reference, safe
from metier.cli.skill.workspace_skills import SkillPlaces, find_named_folder, open_catalog, open_places
from metier.definitions.skills.scripts import discover_scripts, list_references
from metier.definitions.skills.skill import SkillDefinition, SkillReading, load_skill
from metier.definitions.text.headings import Section, parse_sections, walk_sections
from metier.errors import SkillError
from metier.skills.package import SkillPackage

SkillName = Annotated[str, typer.Argument(help="Skill name, ID or folder.")]
ShowFrontmatter = Annotated[bool, typer.Option("--show-frontmatter", help="Show the front matter as written.")]
ShowSections = Annotated[bool, typer.Option("--show-sections", help="Show headings with lines and sizes.")]
_DECLARED = ("id", "compatibility", "metadata", "allowed_tools", "permissions_env", "tags", "frontmatter", "sections")


def show(
    name: SkillName,
    show_frontmatter: ShowFrontmatter = False,
    show_sections: ShowSections = False,
    skills_dir: SkillsDir = None,
    as_json: AsJson = False,
) -> None:
    """Show a skill's origin, trust, capabilities and problems.

    The toolsets of a trusted skill are loaded, because only their code defines which tools they have.
    """
    if find_named_folder(name) is not None:
        inspect(name, show_frontmatter, show_sections, skills_dir, as_json)
        return
    places = open_places(skills_dir)
    package = get_package(places.roots, name)
    reading = load_skill(package.folder)
    skill = reading.skill or package.definition
    sections = parse_sections(skill.body, first_line=skill.body_line)
    details, lines = _describe_with_tools(package, places)
    if as_json:
        declared = _details(skill, reading, sections)
        problems = {"problems": declared["problems"]}
        write_json({**details, **{key: declared[key] for key in _DECLARED}, **problems, "file": str(skill.file)})
        return
    facts = {
        "Compatibility": skill.compatibility,
        "Tags": " ".join(skill.tags),
        "Metadata": ", ".join(f"{key}={value}" for key, value in skill.metadata.items()),
    }
    for line in (*lines, *(f"  {title}: {safe(value)}" for title, value in facts.items() if value)):
        write_line(line)
    for problem in reading.problems:
        warn_line(problem.render())
    _write_source(skill, sections, show_frontmatter=show_frontmatter, show_sections=show_sections)


def _describe_with_tools(package: SkillPackage, places: SkillPlaces) -> tuple[dict[str, object], list[str]]:
    details, lines = describe_package(package, places.roots)
    tools = anyio.run(list_tool_names, package, places)
    return {**details, "tools": tools}, [*lines, *([f"  Tools: {', '.join(tools)}"] if tools else [])]


def info(name: SkillName, as_json: AsJson = False) -> None:
    """Show a skill's origin, trust and capabilities."""
    places = open_places(None)
    details, lines = _describe_with_tools(get_package(places.roots, name), places)
    if as_json:
        write_json(details)
        return
    for line in lines:
        write_line(line)


def inspect(
    name: SkillName,
    show_frontmatter: ShowFrontmatter = False,
    show_sections: ShowSections = False,
    skills_dir: SkillsDir = None,
    as_json: AsJson = False,
) -> None:
    """Show a skill's declarations, files and problems without running code."""
    reading = _get_reading(name, skills_dir)
    skill = reading.skill
    if skill is None:
        raise SkillError(f"Skill {name!r} cannot be read", hint=first_reason(reading))
    sections = parse_sections(skill.body, first_line=skill.body_line)
    if as_json:
        write_json(_details(skill, reading, sections))
        return
    for label, value in _rows(skill):
        if value:
            write_line(f"{label + ':':<15}{value}")
    for problem in reading.problems:
        warn_line(problem.render())
    _write_source(skill, sections, show_frontmatter=show_frontmatter, show_sections=show_sections)


def _write_source(
    skill: SkillDefinition, sections: tuple[Section, ...], *, show_frontmatter: bool, show_sections: bool
) -> None:
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


def _get_reading(name: str, skills_dir: Path | None) -> SkillReading:
    folder = find_named_folder(name)
    if folder is not None:
        return load_skill(folder)
    found = open_catalog(open_places(skills_dir)).get(name)
    reading = load_skill(found.folder, id=found.id, within=found.source.within)
    return replace(reading, skill=dataclasses.replace(reading.skill, name=found.name)) if reading.skill else reading


def first_reason(reading: SkillReading) -> str:
    """Return the first error of a skill that cannot be read."""
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
