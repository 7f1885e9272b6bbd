"""Cold start of `agent --version` and `agent --help` against a bare Typer program, interleaved, best of many."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.table import Row

HELLO = "import typer\n\napp = typer.Typer()\n\n\n@app.command()\ndef hello() -> None:\n    print('hello')\n\n\napp()\n"
ROUNDS = 25


def rows() -> list[Row]:
    agent = str(Path(sys.executable).parent / "agent")
    with tempfile.TemporaryDirectory() as folder:
        hello = Path(folder) / "hello.py"
        hello.write_text(HELLO, encoding="utf-8")
        commands = {
            "pass": [sys.executable, "-c", "pass"],
            "hello": [sys.executable, str(hello)],
            "version": [agent, "--version"],
            "help": [agent, "--help"],
        }
        best = dict.fromkeys(commands, float("inf"))
        for _ in range(ROUNDS):
            for name, command in commands.items():
                started = time.perf_counter()
                subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
                best[name] = min(best[name], time.perf_counter() - started)
    return [
        _row("agent --version / bare typer hello", best["version"] / best["hello"], 1.15),
        _row("agent --help / bare typer hello", best["help"] / best["hello"], 1.6),
        Row("bare typer hello / python -c pass", f"{best['hello'] / best['pass']:.2f} x", "(for scale)", holds=True),
    ]


def _row(name: str, ratio: float, most: float) -> Row:
    return Row(name, f"{ratio:.2f} x", f"<= {most} x", ratio <= most)
