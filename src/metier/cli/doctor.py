"""`agent doctor`: diagnose the installation, API keys and features, and suggest next steps."""

import os
from pathlib import Path
from typing import Annotated

import typer
from msgspec import to_builtins

from metier.cli.shared.command_options import AsJson, Config
from metier.cli.shared.context import current_file, current_settings, current_workspace, home_folder
from metier.cli.shared.output import warn_line, write_json, write_text
from metier.definitions.files.user_folders import get_cache_folder
from metier.definitions.problems import Problem
from metier.errors import ConfigError, UsageError
from metier.providers.feature_support import clear_unsupported
from metier.runtime.diagnosis import Finding, examine
from metier.settings.sections import Settings

app = typer.Typer(rich_markup_mode=None, add_completion=False)

MARKS = {"ok": "ok", "off": "--", "problem": "!!"}


@app.command()
def doctor(
    config: Config = None,
    as_json: AsJson = False,
    clear: Annotated[
        bool, typer.Option("--clear-unsupported", help="Forget which features models did not support.")
    ] = False,
) -> int:
    """Diagnose the installation.

    Exit code 2: the settings are invalid.
    """
    if clear:
        clear_unsupported(get_cache_folder(os.environ, home_folder()))
    settings, invalid, warnings = _read_settings(config)
    exit_code = UsageError.exit_code if invalid else 0
    findings = [*invalid, *examine(settings, os.environ, cwd=current_workspace(), home=home_folder())]
    if as_json:
        write_json([to_builtins(finding) for finding in findings])
        return exit_code
    write_text(render(findings, settings_file=current_file(config)))
    for warning in warnings:
        warn_line(warning.render())
    return exit_code


def _read_settings(config: Path | None) -> tuple[Settings, list[Finding], tuple[Problem, ...]]:
    """Read the settings and their warnings. If they are invalid, return the defaults and a finding."""
    try:
        loaded = current_settings(config, {})
    except ConfigError as error:
        lines = [f"{error.message}; the other checks use the defaults", *(each.render() for each in error.problems)]
        hint = "Correct the settings, then run `agent doctor` again"
        return (
            Settings(),
            [Finding(area="settings", name="file", state="problem", detail="\n".join(lines), hint=hint)],
            (),
        )
    return loaded.settings, [], loaded.warnings


def render(findings: list[Finding], *, settings_file: Path | None) -> str:
    """Render the findings by area, then the steps that fix the problems."""
    lines = [f"Settings: {settings_file or 'defaults (no agent.yaml found; `agent config init` writes one)'}"]
    area = ""
    for finding in findings:
        if finding.area != area:
            area = finding.area
            lines += ["", f"{area.capitalize()}"]
        detail = finding.detail.replace("\n", f"\n{'':19}")
        lines.append(f"  [{MARKS[finding.state]}] {finding.name:<11} {detail}")
    steps = [f"{finding.name}: {finding.hint}" for finding in findings if finding.hint and finding.state == "problem"]
    steps = steps or ["No problems found."]
    return "\n".join([*lines, "", "Next", *(f"  {step}" for step in steps), *_offline_hint(findings)])


def _offline_hint(findings: list[Finding]) -> list[str]:
    if any(finding.area == "providers" and finding.state == "problem" for finding in findings):
        return ["  Or work without a model: --provider offline, or AGENT_MODEL_PROVIDER=offline"]
    return []
