"""Speed of reading the skill catalog: files per second cold, and a warm catalog of 10,000."""

import tempfile
import time
from pathlib import Path

from bench.table import Row
from metier.definitions.skills.catalog_loader import load_catalog
from metier.definitions.skills.sources import SkillSource

COUNT = 10_000
ROUNDS = 3
BODY = "\n# Skill\n\nDo the work in small steps and say what you did.\n\n## Steps\n\n" + "- One step of many\n" * 200
HEADERS = (
    "name: {name}\ndescription: Extract text and tables from files number {number}. Use it when asked about them.\n",
    'name: {name}\ndescription: "Plan the work, then do it: step by step."\nlicense: MIT\ntags: [plan, work]\n',
    "name: {name}\ndescription: |\n  Review a change before it merges.\n  Use it for pull requests.\nversion: 1.0.0\n",
    "name: {name}\ndescription: >-\n  Deploy a service.\n\n  Use it at night.\nallowed-tools: Read, Bash(git:*)\n",
    "name: {name}\ndescription: Query a database.\nmetadata:\n  author: somebody\n  version: '1.0'\n",
    "name: {name}\ndescription: Use this when: the user asks about reports.\nmetadata:\n  a:\n    b: [c, d]\n",
)


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        root, cache = Path(name) / "skills", Path(name) / "cache"
        _write_skills(root)
        sources = [SkillSource("folder", root)]
        cold = min(_seconds(sources, None) for _ in range(ROUNDS))
        time.sleep(0.2)  # files that are younger than a clock tick are not cached
        load_catalog(sources, cache_folder=cache)
        warm = min(_seconds(sources, cache) for _ in range(ROUNDS))
    return [
        Row(
            "skills read for the catalog, cold",
            f"{COUNT / cold:,.0f} files/s",
            ">= 4,000 files/s",
            COUNT / cold >= 4000,
        ),
        Row("catalog of 10,000 skills, warm", f"{warm:.2f} s", "<= 0.5 s", warm <= 0.5),
    ]


def _write_skills(root: Path) -> None:
    for number in range(COUNT):
        name = f"skill-{number:05}"
        folder = root / name
        folder.mkdir(parents=True)
        header = HEADERS[number % len(HEADERS)].format(name=name, number=number)
        (folder / "SKILL.md").write_text(f"---\n{header}---\n{BODY}", encoding="utf-8")


def _seconds(sources: list[SkillSource], cache: Path | None) -> float:
    started = time.perf_counter()
    catalog = load_catalog(sources, cache_folder=cache)
    seconds = time.perf_counter() - started
    assert len(catalog.skills) == COUNT
    return seconds
