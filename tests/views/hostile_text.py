"""Texts that try to run, to fetch or to fake something when a page shows them. None of them may, anywhere."""

import json
from pathlib import Path

PAYLOADS: tuple[str, ...] = tuple(
    json.loads((Path(__file__).parent.parent / "server/hostile_texts.json").read_text(encoding="utf-8"))
)
