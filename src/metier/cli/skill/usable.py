"""Which skills can be used here, and why not the others: one row per skill, for `agent skills list`. Runs no code."""

from pathlib import Path

from metier.cli.shared.output import problem_as_json
from metier.cli.skill.catalog import SkillPlaces, open_active_catalog, open_catalog, open_places
from metier.cli.skill.listing import list_rows
from metier.cli.skill.status import SkillStatus, describe_skills
from metier.dataclass import dataclass
from metier.definitions.names import canonical_name
from metier.definitions.problems import Problem
from metier.definitions.skills.catalog import Catalog, CatalogSkill
from metier.skills.activation import OPT_IN

type Row = dict[str, object]

_TOLD = ("shadowed_skill", "duplicate_name", "link_loop")


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableSkills:
    rows: tuple[Row, ...]
    """Those that can be used first; then the others, each with `why` and, where there is one, the command `to_use`."""
    problems: tuple[Problem, ...]


def find_usable(skills_dir: Path | None) -> UsableSkills:
    places = open_places(skills_dir)
    catalog, active = open_catalog(skills_dir), open_active_catalog(skills_dir)
    usable = {skill.canonical for skill in active.skills}
    packages = {str(row["name_canonical"]): row for row in reversed(list_rows(places.roots, places.selection))}
    statuses = {canonical_name(status.name): status for status in reversed(describe_skills(places).skills)}
    rows: list[Row] = [
        _build_row(skill, packages.get(skill.canonical), skill.canonical in usable) for skill in catalog.skills
    ]
    known = {skill.canonical for skill in catalog.skills}
    rows += [{**_as_package(row), "active": False} for name, row in packages.items() if name not in known]
    rows += [
        _build_lost(name, status) for name, status in statuses.items() if name not in known and name not in packages
    ]
    rows = [_explain(row, statuses.get(str(row["name_canonical"])), places) for row in rows]
    rows.sort(key=lambda row: (not row["active"], str(row["name_canonical"]), str(row["path"])))
    return UsableSkills(rows=tuple(rows), problems=_list_problems(catalog))


def _build_row(skill: CatalogSkill, package: Row | None, is_active: bool) -> Row:
    return {
        **(_as_package(package) if package else {"name_canonical": skill.canonical}),
        "name": package["name"] if package else skill.name,
        "id": skill.id,
        "description": skill.description,
        "version": skill.version,
        "license": skill.license,
        "tags": skill.tags,
        "allowed_tools": skill.allowed_tools,
        "source": package["source"] if package and skill.source.kind == "user" else skill.source.kind,
        "path": skill.path,
        "problems": [problem_as_json(problem) for problem in skill.problems],
        "active": is_active,
    }


def _build_lost(name: str, status: SkillStatus) -> Row:
    return {"name": status.name, "name_canonical": name, "source": status.source, "path": status.path, "active": False}


def _as_package(row: Row) -> Row:
    return {**row, "folder": row["path"]}


def _explain(row: Row, status: SkillStatus | None, places: SkillPlaces) -> Row:
    why, command = ("", "") if row["active"] else _find_reason(row, status, places)
    return {**row, "why": why, "to_use": command}


def _find_reason(row: Row, status: SkillStatus | None, places: SkillPlaces) -> tuple[str, str]:
    name = str(row["name_canonical"])
    if status is not None and status.reason:
        return f"cannot be loaded: {status.reason}", f"agent skills inspect {name}"
    if row["source"] in OPT_IN and not _is_enabled(name, places):
        return "not enabled", f"agent skills enable {name}"
    if status is not None and not status.trusted and row["source"] != "bundled":
        return status.note or "not trusted", f"agent skills trust {name}"
    return (status.note if status is not None else "") or "not active", ""


def _is_enabled(name: str, places: SkillPlaces) -> bool:
    selection = places.selection
    if isinstance(selection, str):
        return selection != "none"
    return name in {canonical_name(each) for each in selection}


def _list_problems(catalog: Catalog) -> tuple[Problem, ...]:
    return tuple(problem for problem in catalog.problems if problem.severity == "error" or problem.code in _TOLD)
