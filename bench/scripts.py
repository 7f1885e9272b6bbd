"""Cost of skill scripts: tokens of context, time to start, memory for a flood of output."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anyio

from bench.table import Row
from metier.definitions.skills.skill import load_skill
from metier.skills.package import SkillPackage
from metier.tools.base import ToolContext
from metier.tools.scripts.active_scripts import ScriptCatalog
from metier.tools.scripts.runner import ScriptEnvironments, ScriptRunner
from metier.tools.scripts.script_tools import build_script_tools
from metier.tools.toolbox import Toolbox
from metier.values import dump_fields

_FLOOD = """
import anyio, os, sys
from pathlib import Path
from metier.tools.process.run import Command, run_process
def peak():
    # Not ru_maxrss: it starts with the size of the process that started this one.
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
async def main(size):
    arguments = ["head", "-c", size, "/dev/zero"]
    return await run_process(Command(arguments=arguments, folder=Path("."), environment={"PATH": os.environ["PATH"]}))
anyio.run(main, "1")
before = peak()
anyio.run(main, str(1 << 30))
print(peak() - before)
"""


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        toolbox = _build_toolbox(Path(folder))
        tokens = len(json.dumps([dump_fields(spec) for spec in toolbox.specs()])) / 4
        seconds = anyio.run(_measure_runs, toolbox, Path(folder))
    flood = subprocess.run([sys.executable, "-c", _FLOOD], capture_output=True, text=True, check=True)
    megabytes = int(flood.stdout) / 1000
    return [
        Row("schemas of the three script tools", f"{tokens:.0f} tokens", "< 450 tokens", tokens < 450),
        Row("script_run, environment prepared", f"{seconds * 1000:.0f} ms", "≤ 270 ms (warm uv run)", seconds <= 0.27),
        Row("memory for 1 GB of output", f"{megabytes:.1f} MB", "≤ 30 MB", megabytes <= 30),
    ]


def _build_toolbox(folder: Path) -> Toolbox:
    skill = folder / "notes"
    (skill / "scripts").mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: notes\ndescription: For a measurement.\n---\n")
    (skill / "scripts" / "empty.py").write_text("print('{}')\n")
    definition = load_skill(skill).skill
    assert definition is not None
    package = SkillPackage(definition=definition, folder=skill, source="workspace")
    environments = ScriptEnvironments(folder=folder / "environments", environ=os.environ)
    runner = ScriptRunner(environments=environments, environ=os.environ)
    return Toolbox(build_script_tools(ScriptCatalog([package]), runner))


async def _measure_runs(toolbox: Toolbox, folder: Path) -> float:
    """The median of ten runs after the first, which prepares the environment."""
    durations: list[float] = []
    for _ in range(11):
        started = time.perf_counter()
        result = await toolbox.call(
            "script_run", {"skill_name": "notes", "script_name": "empty"}, ToolContext(workspace=folder)
        )
        durations.append(time.perf_counter() - started)
        assert result.ok, result.error
    return statistics.median(durations[1:])
