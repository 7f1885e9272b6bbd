"""Run the script of a skill and return its outcome."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a script."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        """Standard output as the one JSON object that it must be."""
        assert self.code == 0, self.err
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return cast("dict[str, Any]", value)


def run_script(script: Path, *args: str, python: Path | None = None, env: Mapping[str, str]) -> Outcome:
    """Run a script with closed standard input; a warning of our interpreter is an error."""
    start = [sys.executable, "-W", "error"] if python is None else [python]
    done = subprocess.run(
        [*start, "-I", "-B", script, *args], cwd=script.parent, env=env, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, encoding="utf-8", timeout=60, check=False,
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout, done.stderr)
