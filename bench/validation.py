"""Duration of `agent validate` for a project with 5,000 definitions."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.table import Row

DEFINITIONS = 5_000
TARGET_SECONDS = 3.0
ROUNDS = 3
AGENT = Path(sys.executable).with_name("agent")


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_project(root)
        seconds = [_validate(root) for _ in range(ROUNDS)]
    best, worst = min(seconds), max(seconds)
    return [
        Row(
            f"{DEFINITIONS:,} definitions validated",
            f"{best:.2f}-{worst:.2f} s",
            f"<= {TARGET_SECONDS:g} s",
            best <= TARGET_SECONDS,
        )
    ]


def write_project(root: Path) -> None:
    """Agents, tasks of two steps and skills that name each other; a step counts as a definition."""
    agents, tasks = DEFINITIONS // 5, DEFINITIONS // 5
    for number in range(agents):
        folder = root / ".agent" / "agents" / f"team-{number % 20}" / f"agent-{number}"
        folder.mkdir(parents=True)
        (folder / "AGENT.md").write_text(
            f"---\nname: Agent {number}\ndescription: Does the work of desk {number}.\ntools: [Read, Grep, Glob]\n"
            f"skills: [skill-{number}]\ntool_approvals:\n  - tool: Bash\n    verdict: ask\nprofile: guarded\n---\n\n"
            "Work with care.\n\n## How\n\nRead first.\n",
            "utf-8",
        )
    for number in range(tasks):
        folder = root / ".agent" / "tasks" / f"task-{number}"
        folder.mkdir(parents=True)
        (folder / "TASK.md").write_text(
            f"---\nname: Task {number}\ndescription: One of many.\nnext: second.md\ninputs:\n  - name: topic\n"
            "    description: What it is about.\n---\n\nRead about {{inputs.topic}}.\n",
            "utf-8",
        )
        (folder / "second.md").write_text(
            f"---\nname: Second\nagent: team-{number % 20}/agent-{number}\n---\n\nWrite about it.\n", "utf-8"
        )
    for number in range(DEFINITIONS - agents - 2 * tasks):
        folder = root / ".agent" / "skills" / f"skill-{number}"
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(
            f"---\nname: skill-{number}\ndescription: Use this when desk {number} has a question.\n---\n\n# Desk\n\n"
            + "Answer in one sentence.\n" * 20,
            "utf-8",
        )


def _validate(root: Path) -> float:
    started = time.perf_counter()
    subprocess.run([AGENT, "validate", "."], cwd=root, env={**os.environ, "HOME": str(root)}, check=True)
    return time.perf_counter() - started
