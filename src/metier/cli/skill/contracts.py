"""`agent skills contracts` and `agent skills check-sync`: contracts of skills, and code that breaks them."""

from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from metier.capabilities.contract import SkillContract
from metier.capabilities.contract_reader import ContractReading, has_contract, read_contract
from metier.capabilities.sync_check import check_path
from metier.cli.shared.options import AllSkills, AsJson, SkillsDir
from metier.cli.shared.output import count, problem_as_json, warn_line, write_json, write_line
from metier.cli.skill.workspace_skills import open_active_catalog, open_catalog, open_places
from metier.definitions.problems import Problem, has_errors
from metier.definitions.skills.catalog import CatalogSkill
from metier.definitions.skills.scripts import is_capability
from metier.definitions.skills.skill import SkillDefinition, load_skill
from metier.skills.activation import get_packages
from metier.skills.needs import SkillNeeds, describe_lacks

_FOREIGN = "user"


def attach(app: typer.Typer) -> None:
    """Add the commands to the group `agent skills`."""
    app.command("contracts", rich_help_panel="Advanced")(contracts)
    app.command("check-sync", rich_help_panel="Advanced")(check_sync)


def contracts(skills_dir: SkillsDir = None, with_all: AllSkills = False, as_json: AsJson = False) -> int:
    """List skill contracts.

    Exit code 1: a contract has an error.
    """
    places = open_places(skills_dir)
    catalog = open_catalog(places) if with_all else open_active_catalog(places)
    needs = SkillNeeds(lambda: get_packages(places.roots), places.selection)
    found = [row for skill in catalog.skills if (row := _read(skill, needs)) is not None]
    if as_json:
        write_json([_as_json(skill, reading) for skill, reading in found])
    else:
        for skill, reading in found:
            write_line(_as_line(skill, reading))
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
    wrong = sum(problem.severity == "error" for problem in problems)
    warn_line(
        f"Checked {count(len(checked), 'file')}: {count(wrong, 'error')}, {count(len(problems) - wrong, 'warning')}"
    )
    return 1 if wrong else 0


def _read(found: CatalogSkill, needs: SkillNeeds) -> tuple[SkillDefinition, ContractReading] | None:
    skill = load_skill(found.folder, id=found.id, within=found.source.within).skill
    if skill is None or not (has_contract(skill) or is_capability(skill)):
        return None
    reading = read_contract(skill, strict=found.source.kind != _FOREIGN)
    return skill, ContractReading(reading.contract, (*reading.problems, *_list_missing(skill, needs)))


def _list_missing(skill: SkillDefinition, needs: SkillNeeds) -> list[Problem]:
    """List missing dependencies, which are no errors of the contract."""
    return [replace(problem, severity="warning") for problem in describe_lacks(skill, needs)]


def _as_json(skill: SkillDefinition, reading: ContractReading) -> dict[str, object]:
    contract = reading.contract
    return {
        "skill": skill.name,
        "path": str(skill.file),
        "callable": is_capability(skill),
        "effect": contract.effect if contract else None,
        "contract": contract.model_dump(mode="json") if contract else None,
        "problems": [problem_as_json(problem) for problem in reading.problems],
    }


def _as_line(skill: SkillDefinition, reading: ContractReading) -> str:
    contract = reading.contract
    if contract is None:
        return f"{skill.name}  invalid contract"
    return f"{skill.name}  {'  '.join(_facts(skill, contract))}"


def _facts(skill: SkillDefinition, contract: SkillContract) -> list[str]:
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
