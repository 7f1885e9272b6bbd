"""Duration of `agent skills route` over a folder of skills with whole bodies: cold and warm.

The processes are real ones. Processor time counts all of them; wall time is theirs together, so two that work side by
side count once. On a machine with other load only the processor time says something.
"""

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.routing_entry import Tool
from bench.table import Row

WHOLE_BODY_WORDS = 1_200
ROUNDS = 3
COLD_SECONDS, KEPT_SECONDS = 4.0, 0.6
_REQUEST = "extract tables from a pdf invoice"
_LINES = ("- {}.", "{}, and the rest.", "## {}\n", "Use the `{}`.", "1. **{}**: do it.", "1. **{}** — then stop.")


class Spent(NamedTuple):
    wall: float
    processors: float
    """Of all processes together."""


def repeat_words(tool: Tool) -> list[str]:
    """The data has each word of a body once; a whole body has about 1,700 words, common ones more often."""
    words = tool.get("body_terms", "").split()
    often = [word for at, word in enumerate(words) for _ in range(max(1, WHOLE_BODY_WORDS // (8 * (at + 1))))]
    return [*often, *words * 3]


def folder_rows(tools: Sequence[Tool]) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for number, tool in enumerate(tools):
            _write_skill(place / "work" / ".agent" / "skills" / f"skill-{number:05}", tool, random.Random(number))
        time.sleep(0.2)  # files that are younger than a clock tick are not kept
        cold = _route(place)
        again = [_route(place) for _ in range(ROUNDS)]
    wall, processors = min(each.wall for each in again), min(each.processors for each in again)
    label = f"{len(tools):,} skills with whole bodies"
    return [
        Row(
            f"skills route, {label}, first time",
            f"{cold.wall:.1f} s, {cold.processors:.1f} s CPU of all processes",
            f"<= {COLD_SECONDS:g} s",
            cold.wall <= COLD_SECONDS,
        ),
        Row(
            f"skills route, {label}, again",
            f"{wall:.2f} s, {processors:.2f} s CPU",
            f"<= {KEPT_SECONDS:g} s",
            wall <= KEPT_SECONDS,
        ),
    ]


def _write_skill(folder: Path, tool: Tool, chance: random.Random) -> None:
    words = repeat_words(tool)
    chance.shuffle(words)
    lines: list[str] = []
    while words:
        count = chance.randint(4, 14)
        lines.append(chance.choice(_LINES).format(" ".join(words[:count])))
        del words[:count]
    head = {"name": tool["name"], "description": tool["description"], "tags": tool["tags"]}
    fields = "\n".join(f"{key}: {json.dumps(value)}" for key, value in head.items())
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"---\n{fields}\n---\n\n# {tool['name']}\n\n" + "\n".join(lines), encoding="utf-8")


def _route(place: Path) -> Spent:
    environ = {**os.environ, "HOME": str(place / "home"), "XDG_CACHE_HOME": str(place / "cache"), "AGENT_TRUST": "all"}
    command = [str(Path(sys.executable).parent / "agent"), "skills", "route", _REQUEST, "--json"]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=place / "work", env=environ, capture_output=True, check=True)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert json.loads(done.stdout)["candidates"]
    return Spent(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
