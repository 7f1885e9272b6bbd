"""Try out what a skill brings: each script's help, the JSON it promises, each toolset. Needs trust, as a run does."""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from metier.cli.skill.catalog import SkillPlaces
from metier.cli.skill.confinement import open_skill_confinement
from metier.dataclass import dataclass
from metier.definitions.placeholders import fill_arguments
from metier.definitions.skills.scripts import Script, discover_scripts
from metier.evals.format.case import ScriptCase
from metier.skills.options import SkillsOptions
from metier.skills.package import SkillPackage
from metier.tools.base import ToolContext, ToolResult
from metier.tools.process.sandbox.confinement import Confinement
from metier.tools.scripts.catalog import ScriptCatalog
from metier.tools.scripts.contract import ScriptLimits
from metier.tools.scripts.runner import ScriptRunner, default_environments
from metier.tools.scripts.tools import build_script_tools
from metier.tools.toolbox import Toolbox
from metier.tools.toolsets.loader import load_toolsets

_SAMPLE = "# Sample\n\nThis folder exists for one trial. - [ ] Nothing is left to do here.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One thing that was tried."""

    name: str
    ok: bool
    message: str = ""
    warning: str = ""


def build_toolbox(package: SkillPackage, options: SkillsOptions, confinement: Confinement) -> Toolbox:
    """The script tools for one skill, with the limits of the settings."""
    limits = ScriptLimits(
        timeout_seconds=options.script_timeout_seconds,
        help_timeout_seconds=options.script_timeout_seconds,
        max_output_bytes=options.max_script_output_bytes,
    )
    runner = ScriptRunner(
        environments=default_environments(os.environ, workspace=Path.cwd()), environ=os.environ, confinement=confinement
    )
    return Toolbox(build_script_tools(ScriptCatalog([package]), runner, limits))


async def try_skill(package: SkillPackage, calls: list[ScriptCase], places: SkillPlaces) -> list[Trial]:
    """Every script's help, every call that the skill itself writes down, every toolset."""
    confinement = await open_skill_confinement(places)
    with tempfile.TemporaryDirectory(prefix="agent-skill-test-") as folder:
        opened = replace(confinement, writable=(*confinement.writable, Path(folder)))
        toolbox = build_toolbox(package, places.settings.skills, opened)
        trials = [await _try_help(toolbox, package, script) for script in discover_scripts(package.definition)]
        for name, script, args in _list_calls(package, calls, Path(folder)):
            if missing := [arg for arg in args if arg.startswith("{") and arg.endswith("}")]:
                trials.append(Trial(name=name, ok=True, warning=f"not tried: {missing[0]} is known in a run only"))
            else:
                trials.append(await _try_json(toolbox, package, name=name, script=script, args=args))
    return [*trials, *(await _try_toolsets(package, confinement))]


async def _try_help(toolbox: Toolbox, package: SkillPackage, script: Script) -> Trial:
    name = f"scripts/{script.path.name} --help"
    arguments: dict[str, JsonValue] = {"skill_name": package.definition.name, "script_name": script.name}
    result = await toolbox.call("script_help", arguments, ToolContext(workspace=package.folder))
    if not result.ok:
        return Trial(name=name, ok=False, message=_say(result))
    text = str(_get_result(result).get("help_text", ""))
    if not text:
        return Trial(name=name, ok=False, message="It prints nothing")
    return Trial(name=name, ok=True, warning="" if "--json" in text else "it does not mention --json")


async def _try_json(toolbox: Toolbox, package: SkillPackage, *, name: str, script: str, args: tuple[str, ...]) -> Trial:
    arguments: dict[str, JsonValue] = {
        "skill_name": package.definition.name,
        "script_name": script,
        "args": list(args),
        "json": True,
    }
    result = await toolbox.call("script_run", arguments, ToolContext(workspace=package.folder))
    return Trial(name=name, ok=result.ok, message="" if result.ok else _say(result))


async def _try_toolsets(package: SkillPackage, confinement: Confinement) -> list[Trial]:
    if not package.definition.toolsets:
        return []
    reading = await load_toolsets([package], os.environ, confinement=confinement)
    try:
        failed = {failure.toolset: failure.message for failure in reading.failures}
        if "" in failed:
            return [Trial(name="toolsets", ok=False, message=failed[""])]
        names = ", ".join(tool.info.name for tool in reading.tools)
        return [
            Trial(
                name=f"toolset {toolset}",
                ok=toolset not in failed,
                message=failed.get(toolset, ""),
                warning="" if names else "it offers no tools",
            )
            for toolset in package.definition.toolsets
        ]
    finally:
        await reading.aclose()


def _list_calls(
    package: SkillPackage, cases: list[ScriptCase], folder: Path
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Name, script and arguments of each call, with the placeholders of an entrypoint filled in."""
    entrypoint = package.definition.entrypoint
    if entrypoint is not None:
        (folder / "sample.md").write_text(_SAMPLE, "utf-8")
        known = {
            "workspace": str(folder),
            "artifacts": str(folder),
            "task": package.definition.description,
            "keywords": "sample",
        }
        args = fill_arguments(entrypoint.args, known)
        yield f"entrypoint {entrypoint.script} --json", entrypoint.script, args
    for case in cases:
        yield f"{case.file} case {case.number}: {case.script} --json", case.script, case.args


def _get_result(result: ToolResult) -> dict[str, JsonValue]:
    inner = result.output.get("result") if isinstance(result.output, dict) else None
    return inner if isinstance(inner, dict) else {}


def _say(result: ToolResult) -> str:
    return result.error or "It failed"
