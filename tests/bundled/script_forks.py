"""Scripts of skills, started as forks of an interpreter that has imported their packages already.

Starting Python and importing is most of what a short script costs. `test_conventions.py` starts each of them as a
program of its own.

    python script_forks.py PACKAGE…    one order in a line of JSON on standard input, how the fork ended on its output
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self


class ScriptForks:
    """One script after the other, each in a process of its own."""

    def __init__(self, python: str, *options: str, packages: Sequence[str] = ()) -> None:
        command = [python, "-I", "-B", *options, __file__, *packages]
        self._forking = subprocess.Popen(command, env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._forking.communicate()

    def run(self, script: Path, *words: str, environment: Mapping[str, str]) -> tuple[int, str, str]:
        """Its exit code, output and errors."""
        assert self._forking.stdin is not None
        assert self._forking.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            order = {"script": str(script), "words": words, "environment": dict(environment), "streams": folder}
            print(json.dumps(order), file=self._forking.stdin, flush=True)
            code = int(self._forking.stdout.readline())
            out, err = (Path(folder, name).read_text(encoding="utf-8") for name in ("out", "err"))
        return code, out, err


def serve() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            become(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def become(order: dict[str, Any]) -> NoReturn:
    """The script itself, as `python -I -B SCRIPT WORDS…` is."""
    import runpy
    import traceback

    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(os.path.join(order["streams"], name), os.O_WRONLY | os.O_CREAT, 0o600), number)  # noqa: PTH118
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(os.path.dirname(order["script"]))  # noqa: PTH120
    sys.argv = [order["script"], *order["words"]]
    code: object = 0
    try:
        runpy.run_path(order["script"], run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001  as the interpreter does
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    for package in sys.argv[1:]:
        importlib.import_module(package)
    serve()
