"""Ask ripgrep, where it is installed, which of many files are worth searching. It never decides what matches."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import anyio

from metier.skills.trusted_programs import find_trusted_program
from metier.tools.files.search_expression import SearchExpression, translate_for_ripgrep

MIN_FILES = 1500
"""Fewer are read in the time that starting a process takes."""
_BATCH_BYTES = 100_000
"""Of arguments for one process; every system takes this much."""
_TIMEOUT_SECONDS = 20
_NONE_FOUND = 1
_FLAGS = ("--no-config", "--files-with-matches", "--null", "--no-messages", "--text", "--color=never", "--no-ignore")


def find_ripgrep(environ: Mapping[str, str], workspace: Path) -> str:
    """The program's path, empty where there is none."""
    return find_trusted_program("rg", environ, writable=(workspace,))


async def narrow(
    paths: Sequence[str], expression: SearchExpression, *, find_program: Callable[[], str], folder: Path
) -> Sequence[str]:
    """The paths that can hold a match, in their order; all of them when ripgrep cannot tell."""
    translated = translate_for_ripgrep(expression.text)
    if translated is None or len(paths) < MIN_FILES or not (program := find_program()):
        return paths
    command = [program, *_FLAGS, *(["--ignore-case"] if expression.ignore_case else []), "--regexp", translated, "--"]
    worth: set[str] = set()
    with anyio.move_on_after(_TIMEOUT_SECONDS):
        for batch in _batches(paths):
            named = [path if path.startswith("/") else f"./{path}" for path in batch]
            done = await anyio.run_process([*command, *named], cwd=folder, env={}, check=False)
            if done.returncode not in {0, _NONE_FOUND}:
                return paths
            worth.update(name.removeprefix("./") for name in done.stdout.decode("utf-8", "surrogateescape").split("\0"))
        return [path for path in paths if path in worth]
    return paths


def _batches(paths: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for path in paths:
        batch.append(path)
        size += len(path.encode("utf-8", "surrogateescape")) + 3
        if size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
