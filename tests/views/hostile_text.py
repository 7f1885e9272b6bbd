"""Texts that try to run, fetch or fake something on a page. None of them may succeed."""

import json
from pathlib import Path

PAYLOADS: tuple[str, ...] = tuple(
    json.loads((Path(__file__).parent.parent / "server/hostile_texts.json").read_text(encoding="utf-8"))
)
