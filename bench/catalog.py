"""How fast skills are read for the catalog: files per second cold, and a warm catalog of 10,000."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.table import Row
from metier.definitions.skills.catalog_reading import load_catalog
from metier.definitions.skills.sources import SkillSource
from metier.definitions.text.front_matter import read_flat
from metier.definitions.text.yaml_text import read_yaml

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
FLAT = 4
"""The last two of six need the YAML reader, the last one the repair: worse than what people write on average."""


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
        _compare_readers(),
    ]


def _compare_readers() -> Row:
    """Whether the reader of simple fields is worth its lines: the headers of a cold catalog, with it and without."""
    headers = [HEADERS[number % FLAT].format(name=f"skill-{number:05}", number=number) for number in range(COUNT)]
    flat, whole = [
        min(_spend(read, headers) for _ in range(ROUNDS)) for read in (read_flat, read_yaml)
    ]  # CPU time: other processes do not count
    ratio = whole / flat
    said = f"{ratio:.1f} x, {whole - flat:.2f} s saved"
    return Row("headers of 10,000 skills, simple fields against YAML", said, ">= 2 x", ratio >= 2)


def _spend(read: Callable[[str], object], headers: list[str]) -> float:
    started = time.process_time()
    for header in headers:
        assert read(header) is not None
    return time.process_time() - started


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
