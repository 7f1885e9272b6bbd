"""Cost of workspace snapshots before and after a program, with a warm index. CPU time, including git's."""

import resource
import subprocess
import tempfile
from pathlib import Path

from bench.table import Row
from metier.tools.files.snapshots import Snapshots

FILES = 20_000
TARGET_MS = 150


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as place:
        workspace = Path(place) / "repository"
        _fill(workspace)
        snapshots = Snapshots(workspace, Path(place) / "snapshots")
        snapshots.take()
        costs = sorted(_measure(snapshots) for _ in range(7))
    cost = costs[len(costs) // 2]
    return [Row(f"snapshot of {FILES} files, warm", f"{cost:.0f} ms", f"≤ {TARGET_MS} ms", cost <= TARGET_MS)]


def _measure(snapshots: Snapshots) -> float:
    before = _used()
    snapshots.take()
    return (_used() - before) * 1000


def _used() -> float:
    """Seconds of processor time, of this process and of those it waited for."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


def _fill(workspace: Path) -> None:
    for number in range(FILES):
        file = workspace / f"folder{number % 200}" / f"file{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"print({number})\n" * 20)
    for words in (("init", "-q"), ("add", "-A")):
        subprocess.run(["git", *words], cwd=workspace, check=True, capture_output=True)
