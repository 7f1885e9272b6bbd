"""Run a task in a workflow: read the inputs of the action, call `agent`, export the run, and write the outputs.

Needs nothing but Python and the command `agent`. It ends with 0 also where the run did not: the last step of the
action ends as the run did, after artifact and comment.
"""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OPTIONS = {
    "INPUT_AGENT": "--agent",
    "INPUT_PROVIDER": "--provider",
    "INPUT_MODEL": "--model",
    "INPUT_PROFILE": "--profile",
    "INPUT_MAX_TURNS": "--max-turns",
    "INPUT_MAX_COST_USD": "--max-cost-usd",
    "INPUT_TIMEOUT": "--timeout",
}


def build_command(environ: Mapping[str, str]) -> list[str]:
    """The words of the call. A value that begins with a dash stays a value."""
    task, task_id = environ.get("INPUT_TASK", "").strip(), environ.get("INPUT_TASK_ID", "").strip()
    if bool(task) == bool(task_id):
        raise SystemExit("error: Give either `task` or `task-id`")
    words = ["agent", *(["task", "run"] if task_id else ["run"]), "--ci", "--output-format", "json"]
    for name, option in OPTIONS.items():
        if value := environ.get(name, "").strip():
            words.append(f"{option}={value}")
    if task_id:
        lines = [line.strip() for line in environ.get("INPUT_INPUTS", "").splitlines() if line.strip()]
        return [*words, *(f"--input={line}" for line in lines), "--", task_id]
    if limit := environ.get("INPUT_ON_LIMIT", "").strip():
        words.append(f"--on-limit={limit}")
    return [*words, "--", task]


def write_outputs(outputs: Mapping[str, str], file: str) -> None:
    """In the form that takes several lines; the end mark cannot be guessed by what stands in between."""
    with Path(file).open("a", encoding="utf-8") as stream:
        for name, value in outputs.items():
            mark = secrets.token_hex(16)
            stream.write(f"{name}<<{mark}\n{value}\n{mark}\n")


def main() -> None:
    environ = os.environ
    done = subprocess.run(build_command(environ), stdout=subprocess.PIPE, text=True, encoding="utf-8", check=False)
    outputs = {"exit-code": str(done.returncode)}
    outcome: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
    if run_id := outcome.get("run_id"):
        folder = Path(outcome["paths"]["folder"])
        archive = Path(environ.get("RUNNER_TEMP") or folder) / f"{run_id}.metier"
        # Secrets are masked in an export, so that it can be an artifact.
        exported = subprocess.run(["agent", "runs", "export", run_id, "-o", str(archive)], check=False)
        outputs |= {
            "run-id": run_id,
            "status": outcome["status"],
            "result": outcome["result"],
            "summary": str(folder / "summary.md"),
            "junit": str(folder / "junit.xml"),
            "archive": str(archive) if exported.returncode == 0 else "",
        }
    if file := environ.get("GITHUB_OUTPUT"):
        write_outputs(outputs, file)
    else:
        sys.stdout.write(json.dumps(outputs) + "\n")


if __name__ == "__main__":
    main()
