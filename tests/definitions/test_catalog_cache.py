"""A cached large catalog equals its files, and every change of them is detected."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from skill_files import write_skill

from metier.definitions.skills.catalog import Catalog
from metier.definitions.skills.catalog_cache import MIN_SKILLS, CachedCatalog
from metier.definitions.skills.catalog_loader import load_catalog
from metier.definitions.skills.sources import SkillSource

TOLD = (
    "---\nname: told\ndescription: Use when: asked\ntags: [a, b]\nversion: 1\nlicense: MIT\nallowed-tools: Read\n---\n"
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two sources with enough skills: one in both, one with warnings, one unreadable."""
    for number in range(MIN_SKILLS):
        write_skill(tmp_path / "near", f"group/skill-{number}")
    write_skill(tmp_path / "near", "told", TOLD)
    write_skill(tmp_path / "near", "empty", "")
    write_skill(tmp_path / "far", "skill-1")
    return tmp_path


def list_sources(place: Path) -> list[SkillSource]:
    return [
        SkillSource("folder", place / "near"),
        SkillSource("workspace", place / "absent", place),
        SkillSource("user", place / "far"),
    ]


def load(place: Path, *, is_kept: bool = True) -> Catalog:
    return load_catalog(list_sources(place), cache_folder=place / "cache" if is_kept else None)


def keep(place: Path) -> Catalog:
    """Load and cache the catalog after its files are old enough to be trusted."""
    places = [path for name in ("near", "far") for path in (place / name, *(place / name).rglob("*"))]
    youngest = max(path.lstat().st_ctime_ns for path in places)
    while time.time_ns() - youngest < 120_000_000:
        os.stat(place)  # noqa: PTH116 - the wait is the point
    return load(place)


def is_cached(place: Path) -> bool:
    return CachedCatalog(place / "cache", list_sources(place)).load() is not None


def test_a_cached_catalog_equals_the_loaded_one(place: Path) -> None:
    read = keep(place)

    assert is_cached(place)
    kept = load(place)

    assert kept == read == load(place, is_kept=False)
    assert kept.sources == read.sources
    assert [skill.id for skill in kept.shadowed] == ["skill-1"]
    assert {problem.code for problem in kept.problems} >= {"shadowed_skill", "empty_file"}
    assert kept.get("told") == read.get("told")
    assert kept.skills[1:3] == read.skills[1:3]


def test_a_partial_cached_catalog_equals_a_partial_loaded_one(place: Path) -> None:
    read = keep(place)
    write_skill(place / "far", "only-there")
    read = keep(place)
    kept = load(place)
    near = SkillSource("folder", place / "near")

    few = kept.keep([], lambda skill: skill.name == "told")
    most = kept.keep([near], lambda _: False)

    assert few == read.keep([], lambda skill: skill.name == "told")
    assert most == read.keep([near], lambda _: False)
    assert len(few.skills) == 1
    assert len(most.skills) == len(kept.skills) - 1
    assert most.find("only-there") is None


def edit(place: Path) -> None:
    """Edit a file without changing its size and time."""
    file = place / "near" / "told" / "SKILL.md"
    status = file.stat()
    file.write_text(file.read_text().replace("asked", "ready"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(place: Path) -> None:
    file = place / "near" / "told" / "SKILL.md"
    fresh = file.with_name("fresh")
    fresh.write_text(file.read_text().replace("asked", "ready"))
    fresh.replace(file)


def add(place: Path) -> None:
    write_skill(place / "near", "group/added")


def nest(place: Path) -> None:
    write_skill(place / "near", "group/skill-3/deeper/nested")


def remove(place: Path) -> None:
    (place / "near" / "told" / "SKILL.md").unlink()


def rename(place: Path) -> None:
    (place / "near" / "group").rename(place / "near" / "other")


def fill_absent(place: Path) -> None:
    write_skill(place / "absent", "appeared")


def remove_source(place: Path) -> None:
    (place / "far").rename(place / "gone")


def put_a_link_for_a_source(place: Path) -> None:
    (place / "far").rename(place / "moved")
    (place / "far").symlink_to(place / "moved")
    write_skill(place / "moved", "moved")


CHANGES: list[Callable[[Path], None]] = [
    edit,
    replace,
    add,
    nest,
    remove,
    rename,
    fill_absent,
    remove_source,
    put_a_link_for_a_source,
]


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_files_and_folders_is_detected(place: Path, change: Callable[[Path], None]) -> None:
    before = keep(place)
    assert is_cached(place)

    change(place)
    after = load(place)

    assert after != before
    assert after == load(place, is_kept=False)


def test_changes_in_quick_succession_are_all_detected(place: Path) -> None:
    for number in range(30):
        write_skill(place / "near", "told", f"---\nname: told\ndescription: number {number:02}\n---\n")
        assert load(place).get("told").description == f"number {number:02}"


@pytest.mark.parametrize("link", ["folder", "file", "to nothing"])
def test_a_catalog_that_depends_on_a_link_is_not_cached(place: Path, link: str) -> None:
    outside = place / "near" / "group" / "skill-2"
    if link == "folder":
        (place / "near" / "linked").symlink_to(outside)
    elif link == "file":
        (place / "near" / "linked").mkdir()
        (place / "near" / "linked" / "SKILL.md").symlink_to(outside / "SKILL.md")
    else:
        (place / "near" / "linked").symlink_to(place / "near" / "later")

    keep(place)

    assert not is_cached(place)
    assert not list((place / "cache").glob("catalog-*"))


def test_a_link_inside_a_skill_does_not_affect_the_catalog(place: Path) -> None:
    (place / "near" / "told" / "notes").symlink_to(place)

    keep(place)

    assert is_cached(place)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_cache_file_is_ignored_and_rewritten(place: Path, damage: str) -> None:
    read = keep(place)
    (stored,) = (place / "cache").glob("catalog-*")
    good = stored.read_bytes()
    middle = len(good) // 2
    flipped = good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]
    stored.write_bytes({"cut": good[:middle], "flip": flipped, "empty": b""}[damage])

    assert load(place) == read
    assert stored.read_bytes() == good


def test_a_small_catalog_is_not_cached(tmp_path: Path) -> None:
    write_skill(tmp_path / "near", "one")
    write_skill(tmp_path / "far", "two")

    keep(tmp_path)

    assert not list((tmp_path / "cache").glob("catalog-*"))
