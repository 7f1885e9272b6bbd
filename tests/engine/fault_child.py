"""A process that runs on a full or read-only disk and reports the outcome."""

import json
import sys
from collections import Counter
from pathlib import Path

import anyio
import small_scenarios as small
from msgspec.structs import replace
from reference_scenario import Call, Narrator

from metier.engine.options import RuntimeOptions
from metier.errors import MetierError
from metier.runtime.answers import Answer
from metier.runtime.requests import RunRequest
from metier.runtime.runs import open_runtime
from metier.settings.sections import Settings
from metier.testing.crash_child import list_log_problems
from metier.testing.crash_kit import read_effects

TURNS = 30
WORDS = "word " * 3000


def build_lines() -> list[list[Call]]:
    turns: list[list[Call]] = [[("post", {"n": n, "text": WORDS}), ("launch", {"n": n})] for n in range(TURNS)]
    return [*turns, [("finish", {"result": "done"})]]


async def run_on_full_disk(disk: Path, spare_kib: int) -> None:
    """Fill the disk almost completely, run until it is full, free it, continue."""
    host = replace(
        small.build(disk, lambda _name: None).host,
        settings=Settings(runtime=RuntimeOptions(max_turns=TURNS + 5)),
        provider=Narrator(build_lines()),
        narrow=None,
    )
    filler = disk / "filler"
    async with open_runtime(host) as runtime:
        effects = disk / "effects.jsonl"
        # On another disk: what is full is that of the run, not that of its effects.
        elsewhere = disk.with_name("effects.jsonl")
        elsewhere.write_text("")
        effects.symlink_to(elsewhere)
        fill(filler, spare_kib)
        first = await runtime.start(RunRequest(task="Fill it up"))
        filler.unlink()
        pause = first.pause
        state = first
        while state.phase not in ("DONE", "ERROR"):
            doubt = "done" if any(step.phase == "in_doubt" for step in state.steps) else None
            state = await runtime.resume(state.run_id, Answer(doubt=doubt))
        counts = Counter(effect["name"] for effect in read_effects(effects))
        report = {
            "first": "paused" if pause else first.status,
            "pause": pause.pause if pause else "",
            "reason": pause.reason if pause else "",
            "then": state.status,
            "posts": counts["post"],
            "keys": len({effect["key"] for effect in read_effects(effects) if effect["name"] == "post"}),
            "launches": counts["launch"],
            "log_is_whole": not await list_log_problems(runtime, state.run_id),
        }
        print(json.dumps(report))


def fill(filler: Path, spare_kib: int) -> None:
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 65536)
        except OSError:
            file.truncate(max(0, file.tell() - (600 + spare_kib) * 1024))


async def start(folder: Path) -> None:
    host = small.build(folder, lambda _name: None).host
    try:
        async with open_runtime(host) as runtime:
            await runtime.start(RunRequest(task="A short run"))
    except MetierError as error:
        print(json.dumps({"failed": type(error).__name__, "message": error.message, "hint": error.hint}))


def main() -> None:
    what, folder, *rest = sys.argv[1:]
    if what == "full":
        anyio.run(run_on_full_disk, Path(folder), int(rest[0]))
    else:
        anyio.run(start, Path(folder))


if __name__ == "__main__":
    main()
