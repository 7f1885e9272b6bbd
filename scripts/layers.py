"""Draw the packages as layers from the import contract: one row per layer, imports point down."""

import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PURPOSES = {
    "testing": "test doubles that ship",
    "cli": "terminal",
    "server": "HTTP API and console",
    "worker": "queued runs",
    "api": "Python API",
    "protocols": "MCP, ACP, A2A",
    "evals": "cases, checks, statistics",
    "runtime": "start, resume, answer, cancel, read",
    "settings": "agent.yaml, environment, flags",
    "plugins": "third-party extensions",
    "engine": "fold, decide, perform",
    "capabilities": "callable skills",
    "context": "prompt",
    "approval": "policy",
    "routing": "skill selection",
    "views": "presentation",
    "tools": "actions",
    "providers": "model providers",
    "store": "SQLite, PostgreSQL",
    "skills": "packages and trust",
    "definitions": "Markdown and YAML",
    "telemetry": "redaction, events, sinks",
}
WIDTH, ROW, GAP = 960, 54, 8
STYLE = """rect{fill:none;stroke:#5b7083}
text{font:14px sans-serif;fill:#5b7083;text-anchor:middle}
.name{font-weight:bold}.small{font-size:11px}"""


def render_layers() -> str:
    """Return an SVG in the colors of the page."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(contract for contract in contracts if contract["id"] == "packages")["layers"]
    rows = [[name.strip(" ()") for name in layer.replace(":", "|").split("|")] for layer in layers]
    height = len(rows) * (ROW + GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Layers">',
        f"<style>{STYLE}</style>",
    ]
    for number, packages in enumerate(rows):
        shown = packages if len(packages) <= len(PURPOSES) and packages[0] in PURPOSES else ["vocabulary"]
        parts.extend(_draw_row(shown, top=GAP + number * (ROW + GAP)))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _draw_row(packages: list[str], *, top: int) -> list[str]:
    wide = (WIDTH - GAP) / len(packages)
    parts: list[str] = []
    for number, package in enumerate(packages):
        left = GAP + number * wide
        middle = left + (wide - GAP) / 2
        purpose = PURPOSES.get(package, "events, messages, decisions, errors, ids")
        parts += [
            f'<rect x="{left:.0f}" y="{top}" width="{wide - GAP:.0f}" height="{ROW}" rx="6"/>',
            f'<text class="name" x="{middle:.0f}" y="{top + 23}">{escape(package)}</text>',
            f'<text class="small" x="{middle:.0f}" y="{top + 41}">{escape(purpose)}</text>',
        ]
    return parts
