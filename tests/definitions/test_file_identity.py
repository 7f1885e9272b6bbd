"""The identity of a file distinguishes a run store from its copy."""

import shutil
from pathlib import Path

import pytest

from metier.definitions.files.whole_file import identify_file


def test_a_renamed_file_keeps_its_identity_and_a_copy_has_another(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    file.write_text("runs")
    before = identify_file(file)

    renamed = file.rename(tmp_path / "moved.db")
    with renamed.open("a") as stream:
        stream.write("more")
    copied = Path(shutil.copy2(renamed, tmp_path / "copied.db"))

    assert identify_file(renamed) == before
    assert identify_file(copied) != before


def test_a_file_with_a_reused_inode_has_another_identity(tmp_path: Path) -> None:
    file, probe = tmp_path / "state.db", tmp_path / "probe"
    probe.touch()
    file.write_text("runs")
    before, removed = identify_file(file), file.stat()
    while probe.stat().st_ctime_ns <= removed.st_ctime_ns:
        probe.write_text("the clock of a file system has ticks of some milliseconds")
    file.unlink()

    file.write_text("runs")

    if file.stat().st_ino != removed.st_ino:
        pytest.skip("this file system does not reuse inodes at once")
    assert identify_file(file) != before
