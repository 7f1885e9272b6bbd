"""What the plugin adds to Metier: a tool, a command, a line of prompt, and a tally of finished runs."""

import json
import sys
from collections import Counter
from pathlib import Path

import typer
from pydantic import JsonValue

from metier import Event
from metier.plugins.registry import Command, PromptLayer, Registry
from metier.tools.base import ToolContext, ToolInfo, ToolResult
from metier_changelog.changelog import read_release

FILE = "CHANGELOG.md"
TALLY = "run-tally.json"

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class ChangelogTool:
    """Gives the model one release of the workspace's changelog."""

    @property
    def info(self) -> ToolInfo:
        return ToolInfo(
            id="plugin:changelog",
            name="changelog_read",
            description="Read what one version of this project changed, by default the latest.",
            category="custom",
            input_schema={
                "type": "object",
                "properties": {"version": {"type": "string", "description": "For instance 1.4.0."}},
                "additionalProperties": False,
            },
            risk="low",
            effect="read",
        )

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        try:
            return ToolResult(ok=True, output=read_release(context.workspace / FILE, str(arguments.get("version", ""))))
        except (OSError, LookupError) as error:
            return ToolResult(ok=False, error=str(error))


class Tally:
    """Counts how runs ended, and writes it down when Metier is done."""

    def __init__(self) -> None:
        self._ends: Counter[str] = Counter()

    def see(self, record: Event) -> None:
        if record.event_type in ("run_finished", "run_failed"):
            self._ends[record.event_type] += 1

    def save(self) -> None:
        if self._ends:
            Path(TALLY).write_text(json.dumps(self._ends), encoding="utf-8")


@app.command()
def changelog(version: str = typer.Argument("", help="The version to show, by default the latest.")) -> None:
    """Show one release of the changelog in this folder."""
    try:
        sys.stdout.write(read_release(Path(FILE), version) + "\n")
    except (OSError, LookupError) as error:
        sys.stderr.write(f"error: {error}\n")
        raise typer.Exit(1) from error


def register(registry: Registry) -> None:
    tally = Tally()
    registry.tools.append(ChangelogTool())
    registry.commands["changelog"] = Command(app, "Show one release of the changelog in this folder.")
    registry.prompt_layers.append(PromptLayer("Changelog", lambda: f"This project keeps its history in {FILE}."))
    registry.subscribers.append(tally.see)
    registry.stop = tally.save
