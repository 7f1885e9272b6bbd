"""The drawing of the rooms, from the import contract: a row for each layer, imports point down."""

import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PURPOSES = {
    "testing": "test doubles that ship",
    "cli": "people at a terminal",
    "server": "HTTP API and console",
    "worker": "runs of a queue",
    "api": "Python programs",
    "doors": "MCP, editors, agents",
    "evals": "cases, checks, statistics",
    "runtime": "opens, starts, resumes, answers, watches",
    "settings": "agent.yaml, environment, flags",
    "plugins": "what others add",
    "engine": "fold, decide, perform",
    "capabilities": "skills that are called",
    "context": "what the model sees",
    "approval": "what may happen",
    "routing": "which skills fit",
    "views": "what a person sees",
    "tools": "what can be done",
    "providers": "who answers",
    "store": "where runs live",
    "skills": "packages and trust",
    "definitions": "Markdown and YAML, read",
    "telemetry": "redaction, events, sinks",
}
WIDTH, ROW, GAP = 960, 54, 8
STYLE = """rect{fill:none;stroke:#5b7083}
text{font:14px sans-serif;fill:#5b7083;text-anchor:middle}
.name{font-weight:bold}.small{font-size:11px}"""


def render_house() -> str:
    """An SVG; the colours are those of the page that shows it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(contract for contract in contracts if contract["id"] == "rooms")["layers"]
    rows = [[name.strip(" ()") for name in layer.replace(":", "|").split("|")] for layer in layers]
    height = len(rows) * (ROW + GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="The rooms">',
        f"<style>{STYLE}</style>",
    ]
    for number, rooms in enumerate(rows):
        shown = rooms if len(rooms) <= len(PURPOSES) and rooms[0] in PURPOSES else ["vocabulary"]
        parts.extend(_draw_row(shown, top=GAP + number * (ROW + GAP)))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _draw_row(rooms: list[str], *, top: int) -> list[str]:
    wide = (WIDTH - GAP) / len(rooms)
    parts: list[str] = []
    for number, room in enumerate(rooms):
        left = GAP + number * wide
        middle = left + (wide - GAP) / 2
        purpose = PURPOSES.get(room, "events, messages, decisions, errors, ids")
        parts += [
            f'<rect x="{left:.0f}" y="{top}" width="{wide - GAP:.0f}" height="{ROW}" rx="6"/>',
            f'<text class="name" x="{middle:.0f}" y="{top + 23}">{escape(room)}</text>',
            f'<text class="small" x="{middle:.0f}" y="{top + 41}">{escape(purpose)}</text>',
        ]
    return parts
