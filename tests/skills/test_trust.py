import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from metier.definitions.skills.skill import load_skill
from metier.errors import SkillNotTrusted, SkillRejected
from metier.skills.package import PackageSource, SkillPackage
from metier.skills.skill_trust import check_trusted, digest_tree, is_trusted


@pytest.fixture
def package(make_folder: Callable[..., Path]) -> SkillPackage:
    folder = make_folder("notes", **{"scripts/find.py": "print(1)\n"})
    definition = load_skill(folder).skill
    assert definition is not None
    tree = digest_tree(folder).tree
    return SkillPackage(definition=definition, folder=folder, source="installed", trusted_digest=tree)


def test_digest_depends_on_paths_bytes_and_executable_bits_only(package: SkillPackage, tmp_path: Path) -> None:
    before = digest_tree(package.folder)
    script = package.folder / "scripts/find.py"

    os.utime(script, (1, 1))
    (package.folder / "empty").mkdir()
    assert digest_tree(package.folder) == before

    script.chmod(0o755)
    assert digest_tree(package.folder).tree != before.tree
    script.chmod(0o644)
    script.rename(script.with_name("search.py"))
    assert digest_tree(package.folder).tree != before.tree


def test_digest_cannot_be_confused_by_moving_bytes_between_names(tmp_path: Path) -> None:
    for name, files in {"a": {"x": "1", "y": "2"}, "b": {"x": "2", "y": "1"}}.items():
        for file, text in files.items():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / file).write_text(text)

    assert digest_tree(tmp_path / "a").tree != digest_tree(tmp_path / "b").tree


def test_trust_covers_exactly_the_trusted_bytes(package: SkillPackage) -> None:
    check_trusted(package)

    (package.folder / "scripts/find.py").write_text("print(2)\n")

    assert not is_trusted(package)
    with pytest.raises(SkillNotTrusted, match="Skill 'notes' changed since it was trusted"):
        check_trusted(package)


@pytest.mark.parametrize("added", ["new.py", "__pycache__/find.cpython-312.pyc", "scripts/.hidden"])
def test_added_file_ends_trust(package: SkillPackage, added: str) -> None:
    (package.folder / added).parent.mkdir(exist_ok=True)
    (package.folder / added).write_text("x")

    assert not is_trusted(package)


def test_link_ends_trust_and_has_no_digest(package: SkillPackage, tmp_path: Path) -> None:
    (package.folder / "link").symlink_to(tmp_path)

    assert not is_trusted(package)
    with pytest.raises(SkillRejected):
        digest_tree(package.folder)


def test_missing_or_special_folder_is_not_trusted(package: SkillPackage) -> None:
    os.mkfifo(package.folder / "pipe")
    assert not is_trusted(package)
    assert not is_trusted(replace(package, folder=package.folder / "nowhere"))


@pytest.mark.parametrize(
    ("source", "trusted"),
    [("bundled", True), ("workspace", True), ("directory", True), ("installed", False), ("user", False)],
)
def test_trust_without_a_digest_depends_on_the_source(
    package: SkillPackage, source: PackageSource, trusted: bool
) -> None:
    assert is_trusted(replace(package, source=source, trusted_digest=None)) == trusted
