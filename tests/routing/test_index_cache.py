"""The cached index ranks equally and is neither stale nor damaged."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from metier.definitions.skills.catalog import Catalog
from metier.definitions.skills.catalog_loader import load_catalog
from metier.definitions.skills.sources import SkillSource
from metier.routing.catalog import FORMAT, MAX_FILES, MIN_SKILLS, load_index, open_index, save_index
from metier.routing.ranking import build_index
from metier.routing.skill import RoutableSkill

REQUESTS = ("tabels of the pdf", "review a pull request", "/weather", "проверка договоров", "hello")


def write_skill(root: Path, name: str, description: str, *, body: str = "") -> Path:
    file = root / name / "SKILL.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"---\nname: {name}\ndescription: {description}\n---\n{body}\n", encoding="utf-8")
    return file


def write_trades(root: Path, count: int) -> None:
    for number in range(count):
        write_skill(root, f"trade-{number}", f"Craft number {number}")


def read_catalog(root: Path) -> Catalog:
    return load_catalog([SkillSource("folder", root)])


def test_a_loaded_index_ranks_exactly_like_the_built_one(twelve: tuple[RoutableSkill, ...], tmp_path: Path) -> None:
    built = build_index(twelve)
    save_index(tmp_path, "f1", built)

    loaded = load_index(tmp_path, "f1")

    assert loaded is not None
    for request in REQUESTS:
        assert loaded.rank(request, 8) == built.rank(request, 8)


def test_an_empty_catalog_can_be_cached(tmp_path: Path) -> None:
    save_index(tmp_path, "f1", build_index([]))

    loaded = load_index(tmp_path, "f1")

    assert loaded is not None
    assert loaded.rank("anything", 8) == []


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign"])
def test_a_damaged_index_file_is_ignored(twelve: tuple[RoutableSkill, ...], tmp_path: Path, damage: str) -> None:
    save_index(tmp_path, "f1", build_index(twelve))
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    middle = len(content) // 2
    damaged = {
        "cut": content[:middle],
        "flip": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "empty": b"",
        "foreign": content.replace(f"routing {FORMAT} ".encode(), b"routing 1 ", 1),
    }
    file.write_bytes(damaged[damage])

    assert load_index(tmp_path, "f1") is None


def test_an_index_cached_for_another_catalog_is_not_used(twelve: tuple[RoutableSkill, ...], tmp_path: Path) -> None:
    save_index(tmp_path, "f1", build_index(twelve))
    (file,) = tmp_path.iterdir()
    file.rename(tmp_path / file.name.replace("f1", "f2"))

    assert load_index(tmp_path, "f2") is None


def test_a_changed_body_is_detected_and_a_damaged_cache_is_rebuilt(tmp_path: Path) -> None:
    root, cache = tmp_path / "skills", tmp_path / "cache"
    write_trades(root, MIN_SKILLS)
    file = write_skill(root, "two", "Second things", body="Knit a scarf.")
    assert open_index(read_catalog(root), cache_folder=cache).rank("knit", 1)[0].skill_name == "two"

    file.write_text(file.read_text(encoding="utf-8").replace("Knit", "Weld"), encoding="utf-8")
    changed = open_index(read_catalog(root), cache_folder=cache)
    for kept in cache.iterdir():
        kept.write_bytes(b"broken")
    rebuilt = open_index(read_catalog(root), cache_folder=cache)

    assert [candidate.skill_name for candidate in changed.rank("weld", 1)] == ["two"]
    assert changed.rank("knit", 1) == []
    assert rebuilt.rank("weld", 1) == changed.rank("weld", 1)


def test_a_file_that_changes_during_indexing_is_not_cached_as_its_old_version(tmp_path: Path) -> None:
    root, cache = tmp_path / "skills", tmp_path / "cache"
    write_trades(root, MIN_SKILLS)
    file = write_skill(root, "two", "Second things", body="Knit a shawl.")
    catalog = read_catalog(root)
    file.write_text(file.read_text(encoding="utf-8").replace("Knit", "Paint"), encoding="utf-8")

    index = open_index(catalog, cache_folder=cache)

    assert [candidate.skill_name for candidate in index.rank("paint", 1)] == ["two"]
    assert not cache.exists()


def test_a_reader_gets_a_complete_index_or_none_during_concurrent_writes(
    twelve: tuple[RoutableSkill, ...], tmp_path: Path
) -> None:
    built = build_index(twelve)
    wanted = built.rank("review a pull request", 8)
    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(save_index, tmp_path, "f1", built) for _ in range(40)]
        found = [load_index(tmp_path, "f1") for _ in range(200)]
        for each in writing:
            each.result(timeout=100)

    assert all(index is None or index.rank("review a pull request", 8) == wanted for index in found)
    assert load_index(tmp_path, "f1") is not None
    assert [file.name for file in tmp_path.iterdir()] == ["routing-f1.index"]


def test_a_missing_cache_folder_only_costs_time(tmp_path: Path) -> None:
    write_trades(tmp_path / "skills", MIN_SKILLS)
    write_skill(tmp_path / "skills", "one", "First things")
    (tmp_path / "file").write_text("in the way")

    index = open_index(read_catalog(tmp_path / "skills"), cache_folder=tmp_path / "file" / "cache")

    assert index.rank("first", 1)[0].skill_name == "one"


def test_only_the_newest_indexes_are_cached(twelve: tuple[RoutableSkill, ...], tmp_path: Path) -> None:
    for number in range(MAX_FILES + 3):
        save_index(tmp_path, f"f{number}", build_index(twelve[:2]))

    assert len(list(tmp_path.iterdir())) == MAX_FILES
    assert load_index(tmp_path, f"f{MAX_FILES + 2}") is not None


def test_code_blocks_of_a_body_are_not_indexed(tmp_path: Path) -> None:
    write_skill(tmp_path, "one", "First things", body="Plain prose.\n\n```python\nimport zebra\n```\n\nGardening.")
    write_skill(tmp_path, "two", "Second things")

    index = open_index(read_catalog(tmp_path))

    assert index.rank("zebra", 1) == []
    assert index.rank("prose", 1)[0].skill_name == "one"
    assert index.rank("gardening", 1)[0].skill_name == "one"


@pytest.mark.parametrize(
    "header",
    [
        "description: First things",
        "description: First things: then others",
        "description: First things\n# Heading",
        "description: First things\nallowed-tools: [",
    ],
)
def test_the_body_below_good_and_bad_front_matter_is_indexed(tmp_path: Path, header: str) -> None:
    file = write_skill(tmp_path, "one", "First things")
    file.write_text(f"---\nname: one\n{header}\n---\n\n# Gardens\n\nPlant tulips.\n", encoding="utf-8")
    write_skill(tmp_path, "two", "Second things")

    (found,) = open_index(read_catalog(tmp_path)).rank("tulips", 1)

    assert (found.skill_name, found.matched[0].fields) == ("one", ("body",))


def test_the_text_above_a_rule_mistaken_for_the_end_of_front_matter_is_indexed(tmp_path: Path) -> None:
    file = write_skill(tmp_path, "one", "First things")
    file.write_text(
        "---\nname: one\ndescription: First things\n\n# Gardens\n\nPlant tulips.\n\n---\n\nMore.\n", encoding="utf-8"
    )
    write_skill(tmp_path, "two", "Second things")

    (found,) = open_index(read_catalog(tmp_path)).rank("tulips", 1)

    assert (found.skill_name, found.matched[0].fields) == ("one", ("body",))
