"""`agent skills validate`, `contracts`, `check-sync` and `to-prompt`: checks of skill files that run no code."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct
from msgspec.structs import replace

from metier.capabilities.contract import SkillContract
from metier.capabilities.contract_reader import ContractReading, check_capability, has_contract, read_contract
from metier.capabilities.sync_check import check_path
from metier.cli.shared.command_options import AllSkills, AsJson, SkillsDir
from metier.cli.shared.context import current_workspace
from metier.cli.shared.output import JsonList, problem_as_json, warn_line, write_json, write_line
from metier.cli.skill.show import first_reason
from metier.cli.skill.workspace_skills import open_active_catalog, open_catalog, open_places
from metier.definitions.files.walk import Walk
from metier.definitions.problems import Problem, has_errors
from metier.definitions.skills.catalog import CatalogSkill
from metier.definitions.skills.scripts import is_capability, report_missing_scripts
from metier.definitions.skills.skill import (
    SkillDefinition,
    SkillReading,
    find_version_problem,
    load_skill,
    parse_once,
    render_available_skills,
)
from metier.definitions.skills.skill_file import FILE_NAME, MAX_FILE_BYTES, get_skill_file, misnamed, read_skill_file
from metier.definitions.skills.sources import is_own_folder
from metier.errors import SkillError, UsageError
from metier.skills.activation import get_packages
from metier.skills.needs import SkillNeeds, describe_lacks
from metier.telemetry.amounts import format_count

_FOREIGN = "user"
"""The kind of skill source whose contracts are not checked strictly: other programs read them too."""
_LOAD_FAILURES = ("missing_script", "needs_version")


class Verdict(Struct, frozen=True):
    path: str
    reading: SkillReading

    @property
    def failed(self) -> bool:
        return has_errors(self.reading.problems)

    @property
    def can_load(self) -> bool:
        """Return whether the skill can be loaded, as `agent check` reports it, but without running toolset code."""
        return self.reading.skill is not None and all(each.code not in _LOAD_FAILURES for each in self.reading.problems)


def judge_paths(paths: list[Path], *, strict: bool) -> Iterator[Verdict]:
    """Check each skill of a file, of a skill's folder, or below a folder.

    Raises `UsageError` when a path does not exist.
    """
    for path in paths:
        # Before the first verdict: a wrong path must fail without half of the output.
        if not os.path.lexists(path):
            raise UsageError(f"Path {str(path)!r} does not exist", hint="Pass a skill folder or a folder of skills")
    for path in paths:
        yield from _judge(path, strict=strict)


def _judge(path: Path, *, strict: bool) -> Iterator[Verdict]:
    if not path.is_dir():
        yield Verdict(str(path), _read(path, strict=strict))
        return
    found = get_skill_file(path)
    is_skill = not isinstance(found, Problem)
    # Files in the parts of a skill are its material, such as templates; in a collection every file counts.
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
        message = f"{file.name!r} is a broken link"
        problem = Problem(severity="error", code="dangling_link", message=message, file=str(file), line=1)
        return SkillReading(None, (problem,))
    data = read_skill_file(file, limit=MAX_FILE_BYTES, within=within)
    if isinstance(data, Problem):
        return SkillReading(None, (data,))
    # Resolved, so that `SKILL.md` and `../SKILL.md` have a folder with a name too.
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
    """Return the path with the root as the caller wrote it."""
    return str(root / os.path.relpath(path, root.absolute()))


def validate(
    paths: Annotated[list[Path], typer.Argument(help="Skill folders, skill files or folders of skills.")],
    strict: Annotated[bool, typer.Option("--strict", help="Apply the Agent Skills specification strictly.")] = False,
    as_json: AsJson = False,
) -> int:
    """Validate skills.

    Exit code 1: there is an error.
    """
    shown = JsonList() if as_json else None
    judged = loaded = failed = 0
    # One by one, because tens of thousands of skills would not fit into memory.
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


def to_prompt(
    paths: Annotated[list[Path], typer.Argument(help="Skill folders or their SKILL.md files.")],
) -> None:
    """Print skills as an `<available_skills>` block."""
    skills: list[SkillDefinition] = []
    for path in paths:
        reading = load_skill((path.parent if path.is_file() else path).resolve())
        if reading.skill is None:
            raise SkillError(f"Skill in {str(path)!r} cannot be read", hint=first_reason(reading))
        skills.append(reading.skill)
    write_line(render_available_skills(skills))


def _verdict_as_json(verdict: Verdict) -> dict[str, object]:
    skill = verdict.reading.skill
    return {
        "path": verdict.path,
        "name": skill.name if skill else None,
        "loaded": verdict.can_load,
        "problems": [_found_as_json(problem, verdict) for problem in verdict.reading.problems],
    }


def _found_as_json(problem: Problem, verdict: Verdict) -> dict[str, object]:
    """Add the path only for files other than the skill's own, which the verdict names."""
    is_elsewhere = Path(problem.file).name != Path(verdict.path).name
    return {**problem_as_json(problem), **({"file": problem.file} if is_elsewhere else {})}


def _write_verdict(verdict: Verdict) -> None:
    if verdict.reading.skill is not None and not verdict.reading.problems:
        write_line(f"{verdict.path}: ok")
    for problem in verdict.reading.problems:
        write_line(problem.render())


def contracts(skills_dir: SkillsDir = None, with_all: AllSkills = False, as_json: AsJson = False) -> int:
    """List skill contracts.

    Exit code 1: a contract has an error.
    """
    places = open_places(skills_dir)
    catalog = open_catalog(places) if with_all else open_active_catalog(places)
    needs = SkillNeeds(lambda: get_packages(places.roots), places.selection)
    found = [row for skill in catalog.skills if (row := _read_contract(skill, needs)) is not None]
    if as_json:
        write_json([_contract_as_json(skill, reading) for skill, reading in found])
    else:
        for skill, reading in found:
            write_line(_render_contract(skill, reading))
    for _, reading in found:
        for problem in reading.problems:
            warn_line(problem.render())
    if not found:
        warn_line("No active skill has a contract")
    return 1 if any(has_errors(reading.problems) for _, reading in found) else 0


def check_sync(
    path: Annotated[Path, typer.Argument(help="Python file, skill or folder.")],
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False,
    as_json: AsJson = False,
) -> int:
    """Find code that can't run in one synchronous task.

    Exit code 1: there is an error.

    Reports async functions, event loops, threads that are never joined, network calls without a timeout, and
    background work.
    """
    checked = check_path(path)
    problems = [problem for _, found in checked for problem in found]
    if strict:
        problems = [replace(problem, severity="error") for problem in problems]
    if as_json:
        items = [{"file": each.file, **problem_as_json(each), "remedy": each.hint} for each in problems]
        write_json({"files": len(checked), "problems": items})
    else:
        for problem in problems:
            write_line(problem.render())
    errors = sum(problem.severity == "error" for problem in problems)
    warn_line(
        f"Checked {format_count(len(checked), 'file')}: {format_count(errors, 'error')},"
        f" {format_count(len(problems) - errors, 'warning')}"
    )
    return 1 if errors else 0


def _read_contract(found: CatalogSkill, needs: SkillNeeds) -> tuple[SkillDefinition, ContractReading] | None:
    skill = load_skill(found.folder, id=found.id, within=found.source.within).skill
    if skill is None or not (has_contract(skill) or is_capability(skill)):
        return None
    reading = read_contract(skill, strict=found.source.kind != _FOREIGN)
    # Missing dependencies are no errors of the contract.
    lacks = [replace(problem, severity="warning") for problem in describe_lacks(skill, needs)]
    return skill, ContractReading(reading.contract, (*reading.problems, *lacks))


def _contract_as_json(skill: SkillDefinition, reading: ContractReading) -> dict[str, object]:
    contract = reading.contract
    return {
        "skill": skill.name,
        "path": str(skill.file),
        "callable": is_capability(skill),
        "effect": contract.effect if contract else None,
        "contract": contract.model_dump(mode="json") if contract else None,
        "problems": [problem_as_json(problem) for problem in reading.problems],
    }


def _render_contract(skill: SkillDefinition, reading: ContractReading) -> str:
    contract = reading.contract
    if contract is None:
        return f"{skill.name}  invalid contract"
    return f"{skill.name}  {'  '.join(_list_contract_facts(skill, contract))}"


def _list_contract_facts(skill: SkillDefinition, contract: SkillContract) -> list[str]:
    states = contract.interaction.allowed_intermediate_states
    facts = [
        contract.execution_mode,
        f"autonomy {contract.autonomy_level}",
        f"effects {', '.join(contract.side_effects.kinds) or 'none'} ({contract.effect})",
        f"states {', '.join(states)} in {contract.interaction.max_turns} turns" if states else "one turn",
        f"keeps {contract.state_persistence}",
        f"{contract.timeout_seconds:g}s",
    ]
    return facts if is_capability(skill) else [*facts, "no impl.py"]
