"""An automatically started worker writes only to its own log and not through a link from a clone."""

from pathlib import Path

import pytest

from metier.runtime.queue.wakeups import open_log


def test_log_that_is_a_link_is_not_written(tmp_path: Path) -> None:
    target = tmp_path / "diary.txt"
    target.write_text("dear diary")
    (tmp_path / "worker.log").symlink_to(target)

    with pytest.raises(OSError, match="symbolic links"):
        open_log(tmp_path / "worker.log")
    assert target.read_text() == "dear diary"


def test_oversized_log_is_restarted(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_bytes(b"x" * 1_000_000)

    with open_log(log) as stream:
        stream.write(b"new")

    assert log.read_bytes() == b"new"
