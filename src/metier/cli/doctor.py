"""`agent doctor`: diagnose the installation, API keys and features, and suggest next steps."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from msgspec import to_builtins

from metier.cli.shared.context import current_settings, current_workspace, home_folder
from metier.cli.shared.options import AsJson, Config
from metier.cli.shared.output import write_json, write_text
from metier.definitions.files.user_folders import get_cache_folder
from metier.providers.feature_support import clear_unsupported
from metier.runtime.diagnosis import Finding, examine

app = typer.Typer(rich_markup_mode=None, add_completion=False)

MARKS = {"ok": "ok", "off": "--", "problem": "!!"}


@app.command()
def doctor(
    config: Config = None,
    as_json: AsJson = False,
    clear: Annotated[
        bool, typer.Option("--clear-unsupported", help="Forget which features models did not support.")
    ] = False,
) -> None:
    """Diagnose the installation."""
    if clear:
        clear_unsupported(get_cache_folder(os.environ, home_folder()))
    loaded = current_settings(config, {})
    findings = list(examine(loaded.settings, os.environ, cwd=current_workspace(), home=home_folder()))
    if as_json:
        write_json([to_builtins(finding) for finding in findings])
        return
    write_text(render(findings, settings_file=loaded.file))
    for warning in loaded.warnings:
        sys.stderr.write(f"{warning.render()}\n")


def render(findings: list[Finding], *, settings_file: Path | None) -> str:
    """Render the findings by area, then the steps that fix the problems."""
    lines = [f"Settings: {settings_file or 'defaults (no agent.yaml found; `agent config init` writes one)'}"]
    area = ""
    for finding in findings:
        if finding.area != area:
            area = finding.area
            lines += ["", f"{area.capitalize()}"]
        lines.append(f"  [{MARKS[finding.state]}] {finding.name:<11} {finding.detail}")
    steps = [f"{finding.name}: {finding.hint}" for finding in findings if finding.hint and finding.state == "problem"]
    steps = steps or ["No problems found."]
    return "\n".join([*lines, "", "Next", *(f"  {step}" for step in steps), *_offline_hint(findings)])


def _offline_hint(findings: list[Finding]) -> list[str]:
    if any(finding.area == "providers" and finding.state == "problem" for finding in findings):
        return ["  Or work without a model: --provider offline, or AGENT_MODEL_PROVIDER=offline"]
    return []
