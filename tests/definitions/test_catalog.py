import os
import time
from pathlib import Path

import pytest
from skill_files import codes, write_skill

from metier.definitions.files.user_folders import get_cache_folder
from metier.definitions.skills.catalog import Catalog
from metier.definitions.skills.catalog_cache import CatalogCache, stamp_of
from metier.definitions.skills.catalog_loader import load_catalog
from metier.definitions.skills.sources import SkillSource, build_search_path
from metier.errors import SkillNotFound

OLD = 1_700_000_000


def catalog_of(root: Path, cache: Path | None = None) -> Catalog:
    return load_catalog([SkillSource("folder", root)], cache_folder=cache)


def names(catalog: Catalog) -> list[str]:
    return [skill.name for skill in catalog.skills]


def wait_until_cacheable(root: Path) -> None:
    """Wait until the youngest file is older than a clock tick, because a cache does not trust younger ones."""
    youngest = max(path.stat().st_ctime_ns for path in root.rglob("*"))
    while time.time_ns() - youngest < 120_000_000:
        os.stat(root)  # noqa: PTH116 - the wait is the point


def test_skills_are_found_in_nested_folders_with_ids_from_folders(tmp_path: Path) -> None:
    write_skill(tmp_path, "one")
    write_skill(tmp_path, "group/two")
    write_skill(tmp_path, "group/sub/three")

    catalog = catalog_of(tmp_path)

    assert [(skill.name, skill.id) for skill in catalog.skills] == [
        ("one", "one"),
        ("three", "group/sub/three"),
        ("two", "group/two"),
    ]
    assert catalog.get("GROUP/two").name == "two"
    assert catalog.get("one").folder == tmp_path / "one"


def test_parts_of_a_skill_dot_folders_and_dependencies_are_not_skills(tmp_path: Path) -> None:
    write_skill(tmp_path, "outer")
    for part in ("outer/assets/template", "outer/references/x", ".git/x", "node_modules/x", "__pycache__/x"):
        write_skill(tmp_path, part)
    write_skill(tmp_path, "outer/inner")

    assert names(catalog_of(tmp_path)) == ["inner", "outer"]


def test_a_folder_that_is_a_skill_itself_is_found(tmp_path: Path) -> None:
    assert [skill.id for skill in catalog_of(write_skill(tmp_path, "only")).skills] == ["only"]


def test_hidden_skills_are_reported_by_precedence(tmp_path: Path) -> None:
    home, work, asked, bundled = (tmp_path / name for name in ("home", "work", "asked", "bundled"))
    places = {
        "asked": asked,
        "agent": work / ".agent/skills",
        "nanobot": work / ".nanobot/skills",
        "agents": work / ".agents/skills",
        "claude": work / ".claude/skills",
        "bundled": bundled,
        "user": home / ".agent/skills",
        "shared": home / ".agents/skills",
    }
    order = list(places)
    for index, place in enumerate(order):
        for name in order[index:]:
            write_skill(places[place], f"for-{name}", f"---\nname: for-{name}\ndescription: From {place}.\n---\n")
    sources = build_search_path(work, home=home, skills_dir=asked, bundled=bundled)

    catalog = load_catalog(sources)

    assert {skill.name: skill.description for skill in catalog.skills} == dict.fromkeys(
        (f"for-{name}" for name in order), "From asked."
    )
    without = load_catalog(build_search_path(work, home=home, bundled=bundled))
    assert without.get("for-shared").source.kind == "workspace"
    assert codes(without.problems) == {"shadowed_skill"}
    only_user = load_catalog(build_search_path(tmp_path / "empty", home=home, bundled=bundled))
    assert only_user.get("for-user").source.kind == "bundled"
    assert only_user.get("for-user").folder == bundled / "for-user"
    assert {skill.source.kind for skill in only_user.shadowed} == {"user"}


def test_two_skills_with_the_same_name_in_one_folder_are_called_by_id(tmp_path: Path) -> None:
    write_skill(tmp_path, "a", "---\nname: Same_Name\ndescription: first\n---\n")
    write_skill(tmp_path, "b", "---\nname: same-name\ndescription: second\n---\n")

    catalog = catalog_of(tmp_path)

    assert [(skill.name, skill.description) for skill in catalog.skills] == [("a", "first"), ("b", "second")]
    assert catalog.find("same-name") is None
    assert catalog.get("B").description == "second"


def test_the_second_of_two_ids_that_differ_only_in_a_hyphen_is_reported_and_ignored(tmp_path: Path) -> None:
    write_skill(tmp_path, "a_b", "---\nname: same\ndescription: second\n---\n")
    write_skill(tmp_path, "a-b", "---\nname: same\ndescription: first\n---\n")

    catalog = catalog_of(tmp_path)

    assert [skill.description for skill in catalog.skills] == ["first"]
    assert codes(catalog.problems) >= {"duplicate_name"}


def test_every_problem_is_collected_and_good_skills_still_load(tmp_path: Path) -> None:
    write_skill(tmp_path, "good")
    write_skill(tmp_path, "empty", "")
    write_skill(tmp_path, "list", "---\n- a\n---\n")
    (tmp_path / "dangling").mkdir()
    (tmp_path / "dangling" / "SKILL.md").symlink_to("nowhere")
    (tmp_path / "folder" / "SKILL.md").mkdir(parents=True)

    catalog = catalog_of(tmp_path)

    assert names(catalog) == ["good"]
    assert codes(catalog.problems) == {"empty_file", "not_a_mapping", "dangling_link", "not_a_file"}
    assert all(problem.file and problem.line for problem in catalog.problems)


def test_linked_skills_are_found_without_following_loops_or_outside_links(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write_skill(root / "a", "one")
    write_skill(tmp_path / "elsewhere", "out")
    (root / "a" / "up").symlink_to(root)
    (root / "a" / "self").symlink_to(root / "a")
    (root / "b").mkdir()
    (root / "b" / "x").symlink_to(root / "c")
    (root / "c").mkdir()
    (root / "c" / "y").symlink_to(root / "b")
    write_skill(root / ".shared", "linked")
    (root / "linked").symlink_to(root / ".shared" / "linked")
    (root / "out").symlink_to(tmp_path / "elsewhere" / "out")

    catalog = catalog_of(root)

    assert names(catalog) == ["linked", "one"]
    assert codes(catalog.problems) == {"link_loop", "link_out"}


def test_a_missing_source_is_empty(tmp_path: Path) -> None:
    assert catalog_of(tmp_path / "absent") == Catalog()


def test_an_unknown_skill_is_an_error_with_a_suggestion(tmp_path: Path) -> None:
    write_skill(tmp_path, "kalshi-markets")

    with pytest.raises(SkillNotFound) as caught:
        catalog_of(tmp_path).get("kalshi_market")

    assert caught.value.hint == "Did you mean 'kalshi-markets'?"


def is_cached(cache: Path, file: Path) -> bool:
    return CatalogCache(cache, file.parent.parent).find(str(file), stamp_of(file.stat())) is not None


def test_a_cached_catalog_is_equal_and_does_not_read_the_files(tmp_path: Path) -> None:
    root, cache = tmp_path / "skills", tmp_path / "cache"
    write_skill(root, "one", "---\nname: one\ndescription: Use when: asked\ntags: [a, b]\nversion: 1\n---\n")
    write_skill(root, "two", "")
    wait_until_cacheable(root)
    cold = catalog_of(root, cache)

    warm = catalog_of(root, cache)

    assert warm == cold == catalog_of(root)
    assert is_cached(cache, root / "one" / "SKILL.md")
    assert is_cached(cache, root / "two" / "SKILL.md")


def test_the_cache_is_correct_after_an_edit_a_removal_and_a_rename(tmp_path: Path) -> None:
    root, cache = tmp_path / "skills", tmp_path / "cache"
    for name in ("one", "two", "three"):
        write_skill(root, name)
    wait_until_cacheable(root)
    catalog_of(root, cache)

    write_skill(root, "one", "---\nname: one\ndescription: Was one.\n---\nBody\n")
    (root / "two" / "SKILL.md").unlink()
    (root / "three").rename(root / "four")
    catalog = catalog_of(root, cache)

    assert {skill.id: skill.description for skill in catalog.skills} == {"one": "Was one.", "four": "Does three."}
    assert catalog_of(root, cache) == catalog


def test_an_edit_with_equal_size_and_restored_time_is_detected(tmp_path: Path) -> None:
    root, cache = tmp_path / "skills", tmp_path / "cache"
    file = write_skill(root, "one", "---\nname: one\ndescription: aaaa\n---\n") / "SKILL.md"
    os.utime(file, (OLD, OLD))
    wait_until_cacheable(root)
    catalog_of(root, cache)

    file.write_text("---\nname: one\ndescription: bbbb\n---\n", encoding="utf-8")
    os.utime(file, (OLD, OLD))

    assert catalog_of(root, cache).get("one").description == "bbbb"


def test_a_file_changed_within_the_current_clock_tick_is_not_cached(tmp_path: Path) -> None:
    root, cache = tmp_path / "skills", tmp_path / "cache"
    file = write_skill(root, "one") / "SKILL.md"
    later = time.time() + 3600
    os.utime(file, (later, later))

    catalog_of(root, cache)

    assert not is_cached(cache, file)


def test_edits_in_quick_succession_are_all_detected(tmp_path: Path) -> None:
    root, cache = tmp_path / "skills", tmp_path / "cache"

    for number in range(50):
        write_skill(root, "one", f"---\nname: one\ndescription: number {number:02}\n---\n")
        assert catalog_of(root, cache).get("one").description == f"number {number:02}"


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\x00", b"1 0.1.0 abc\n{}", b"[]\n[]"])
def test_a_damaged_cache_is_ignored_and_replaced(tmp_path: Path, damage: bytes) -> None:
    root, cache = tmp_path / "skills", tmp_path / "cache"
    write_skill(root, "one")
    wait_until_cacheable(root)
    catalog_of(root, cache)
    (stored,) = cache.iterdir()
    good = stored.read_bytes()
    stored.write_bytes(damage)

    assert names(catalog_of(root, cache)) == ["one"]
    assert stored.read_bytes() == good


def test_a_flipped_byte_in_the_cache_changes_nothing(tmp_path: Path) -> None:
    root, cache = tmp_path / "skills", tmp_path / "cache"
    write_skill(root, "one")
    wait_until_cacheable(root)
    expected = catalog_of(root, cache)
    (stored,) = cache.iterdir()
    good = bytearray(stored.read_bytes())

    for index in range(0, len(good), 7):
        bad = good.copy()
        bad[index] ^= 1
        stored.write_bytes(bad)
        assert catalog_of(root, cache) == expected


def test_a_cache_that_cannot_be_written_is_not_a_problem(tmp_path: Path) -> None:
    root = tmp_path / "skills"
    write_skill(root, "one")
    (tmp_path / "file").write_text("")

    assert names(catalog_of(root, tmp_path / "file")) == ["one"]


def test_the_cache_is_in_the_xdg_cache_folder(tmp_path: Path) -> None:
    assert get_cache_folder({}, tmp_path) == tmp_path / ".cache" / "agent"
    assert get_cache_folder({"XDG_CACHE_HOME": "relative"}, tmp_path) == tmp_path / ".cache" / "agent"
    assert get_cache_folder({"XDG_CACHE_HOME": str(tmp_path / "c")}, tmp_path) == tmp_path / "c" / "agent"
