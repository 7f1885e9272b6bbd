"""The Jinja environment of every page: templates that the console and shared files use, and how values read.

Text is escaped by default. Only `markdown` gives markup, and it writes that by an allowlist.
"""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import cast

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pydantic import JsonValue

from metier.telemetry.excerpt import one_line
from metier.telemetry.sanitize import sanitize
from metier.views.closing import find_seconds, format_cost, format_seconds, format_tokens
from metier.views.diff import build_step_diff, parse_diff
from metier.views.page.markdown_html import render_markdown_html

FOLDER = Path(__file__).parent
STYLE_FILE = FOLDER / "style.css"

_STATUS_WORDS = {"input_required": "needs an answer", "in_progress": "running", "delegating": "waits for a child run"}
_STATUS_KINDS = {
    "completed": "ok",
    "in_progress": "live",
    "delegating": "live",
    "pending": "",
    "queued": "",
    "canceled": "",
    "paused": "warn",
    "input_required": "warn",
    "interrupted": "warn",
    "blocked": "warn",
    "escalated": "warn",
}
_STEP_KINDS = {"succeeded": "ok", "running": "live", "waiting": "warn", "skipped": "", "in_doubt": "warn"}


def build_environment(folders: Sequence[Path] = ()) -> Environment:
    """`folders` are searched before the templates of this package."""
    loaders = [FileSystemLoader(folder) for folder in (*folders, FOLDER / "templates")]
    environment = Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = cast("dict[str, Callable[..., object]]", environment.filters)  # of the types of those that Jinja brings
    filters |= {
        "cost": format_cost,
        "tokens": format_tokens,
        "seconds": format_seconds,
        "moment": format_moment,
        "pretty": render_json,
        "safe_text": sanitize,
        "line": _cut_line,
        "markdown": _render_markdown,
        "status": _name_status,
        "status_kind": _find_status_kind,
        "step_kind": _find_step_kind,
        "diff_lines": _list_diff_lines,
        "step_diff": build_step_diff,
        "count": count,
        "took": find_seconds,
    }
    return environment


def count(number: int, noun: str, many: str = "") -> str:
    """`1 run`, `2 runs`."""
    return f"{number:,} {noun if number == 1 else many or f'{noun}s'}"


def format_moment(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def render_json(value: JsonValue) -> str:
    """As people read it; a text stays the text that it is."""
    if isinstance(value, str):
        return sanitize(value)
    return sanitize(json.dumps(value, indent=2, ensure_ascii=False))


def _cut_line(text: str, most: int = 90) -> str:
    return one_line(sanitize(text), most)


def _render_markdown(text: str) -> Markup:
    return Markup(render_markdown_html(text))  # noqa: S704 - written by an allowlist, tested with hostile text


def _list_diff_lines(unified: str, most: int = 400) -> list[tuple[str, str, str]]:
    """Kind, number and text of each line; the rest is counted."""
    lines = list(parse_diff(unified))
    shown = [(line.kind, str(line.number or ""), line.text) for line in lines[:most]]
    left = len(lines) - len(shown)
    return [*shown, ("note", "", f"… {left:,} more lines")] if left else shown


def _name_status(status: str) -> str:
    return _STATUS_WORDS.get(status, status.replace("_", " ") or "not started")


def _find_status_kind(status: str) -> str:
    return _STATUS_KINDS.get(status, "bad")


def _find_step_kind(state: str) -> str:
    return _STEP_KINDS.get(state, "bad")
