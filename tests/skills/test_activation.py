from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from metier.definitions.skills.catalog_loader import load_catalog
from metier.definitions.skills.sources import SKILL_FOLDERS, USER_FOLDERS, build_search_path
from metier.errors import UsageError
from metier.skills.activation import Activation, SkillRoots, activate, build_roots, get_packages, parse_selection
from metier.skills.skill_trust import is_trusted

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.skills.conftest import Machine

MANIFEST = "---\nname: {}\ndescription: Does one thing.\n---\n"


def put(root: Path, *names: str) -> None:
    for name in names:
        folder = root / name
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(MANIFEST.format(Path(name).name))


@pytest.fixture
def roots(machine: Machine, make_folder: Callable[..., Path], tmp_path: Path) -> SkillRoots:
    """Roots with bundled `kalshi-markets`, installed `notes` (trusted) and `other`, manual `hand`, workspace `own`."""
    put(tmp_path / "bundled", "kalshi-markets")
    machine.agent("add", str(make_folder("notes")), "--yes")
    machine.agent("add", str(make_folder("other")), "--no-trust")
    put(machine.home.root, "hand")
    put(machine.workspace / ".agent" / "skills", "own")
    return build_roots(home=Path.home(), workspace=machine.workspace, bundled=tmp_path / "bundled")


def choose(roots: SkillRoots, text: str) -> Activation:
    return activate(get_packages(roots), parse_selection(text))


def names(activation: Activation) -> list[str]:
    return [package.definition.name for package in activation.packages]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("", ["own"]),
        ("none", ["own"]),
        ("None", ["own"]),
        ("all", ["kalshi-markets", "notes", "own"]),
        ("ALL", ["kalshi-markets", "notes", "own"]),
        ("all-untrusted", ["hand", "kalshi-markets", "notes", "other", "own"]),
        ("Kalshi_Markets", ["kalshi-markets", "own"]),
        (" notes , KALSHI-markets,,notes", ["kalshi-markets", "notes", "own"]),
        ("own", ["own"]),
    ],
)
def test_selection_activates_packages_and_the_workspace_is_always_active(
    roots: SkillRoots, selection: str, expected: list[str]
) -> None:
    activation = choose(roots, selection)

    assert names(activation) == expected
    assert activation.problems == ()


def test_untrusted_skill_in_a_list_is_skipped_with_a_message(roots: SkillRoots) -> None:
    activation = choose(roots, "notes,other,hand")

    assert names(activation) == ["notes", "own"]
    assert [problem.code for problem in activation.problems] == ["skill_not_trusted"] * 2
    assert "agent skill trust other" in activation.problems[0].hint


def test_changed_skill_is_not_part_of_all(roots: SkillRoots) -> None:
    (roots.home.visible("notes") / "SKILL.md").write_text(MANIFEST.format("notes") + "changed")

    assert names(choose(roots, "all")) == ["kalshi-markets", "own"]
    assert "changed since it was trusted" in choose(roots, "notes").problems[0].message


def test_unknown_name_is_an_error_with_suggestions(roots: SkillRoots) -> None:
    problem = choose(roots, "kalshi-market").problems[0]

    assert (problem.severity, problem.code) == ("error", "unknown_skill")
    assert "kalshi-markets" in problem.hint


def test_broken_skill_is_named_with_its_reason(roots: SkillRoots) -> None:
    put(roots.home.root, "broken")
    (roots.home.root / "broken/SKILL.md").write_text("---\nname: broken\n---\n")

    problem = choose(roots, "broken").problems[0]

    assert problem.code == "skill_broken"
    assert "description" in problem.message


def test_all_without_trusted_skills_is_a_warning(machine: Machine) -> None:
    roots = build_roots(home=Path.home(), workspace=machine.workspace, bundled=None)

    problem = choose(roots, "all").problems[0]

    assert (problem.severity, problem.message) == ("warning", "No trusted skills installed")
    assert "all-untrusted" in problem.hint


def test_workspace_skill_hides_an_installed_one_with_a_warning(roots: SkillRoots, machine: Machine) -> None:
    put(machine.workspace / ".claude" / "skills", "notes")

    activation = choose(roots, "notes")

    assert [package.source for package in activation.packages] == ["workspace", "workspace"]
    assert [problem.code for problem in activation.problems] == ["shadowed_skill"]


def test_installed_skill_does_not_hide_a_bundled_one(roots: SkillRoots) -> None:
    put(roots.home.root, "kalshi_markets")

    activation = choose(roots, "all-untrusted")

    assert [package.source for package in activation.packages if "kalshi" in package.definition.name] == ["bundled"]
    assert [problem.code for problem in activation.problems] == ["shadowed_skill"]


def test_packages_have_their_location_commit_and_trust(roots: SkillRoots) -> None:
    found = {package.definition.name: package for package in get_packages(roots).packages}

    assert {name: package.source for name, package in found.items()} == {
        "kalshi-markets": "bundled",
        "notes": "installed",
        "other": "installed",
        "hand": "user",
        "own": "workspace",
    }
    assert [name for name in sorted(found) if is_trusted(found[name])] == ["kalshi-markets", "notes", "own"]


def test_keyword_in_a_list_of_names_is_rejected(roots: SkillRoots) -> None:
    with pytest.raises(UsageError, match="in a list"):
        choose(roots, "all,notes")


@pytest.mark.parametrize("grouped", [False, True], ids=["one ID", "an ID for each place"])
def test_lists_and_runs_resolve_duplicate_names_equally(tmp_path: Path, grouped: bool) -> None:
    home, work, asked, bundled = (tmp_path / name for name in ("home", "work", "asked", "bundled"))
    folders = [
        asked,
        *(work / folder for folder in SKILL_FOLDERS),
        bundled,
        *(home / folder for folder in USER_FOLDERS),
    ]
    for (first, one), (second, other) in combinations(enumerate(folders), 2):
        for number, folder in ((first, one), (second, other)):
            put(folder, f"group-{number}/skill-{first}-{second}" if grouped else f"skill-{first}-{second}")

    listed = load_catalog(build_search_path(work, home=home, skills_dir=asked, bundled=bundled))
    used = choose(build_roots(home=home, workspace=work, bundled=bundled, directories=[asked]), "all-untrusted")

    assert {skill.name: skill.folder for skill in listed.skills} == {
        package.definition.name: package.folder for package in used.packages
    }
