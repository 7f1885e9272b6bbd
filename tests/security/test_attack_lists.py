"""The attack lists of other tests do not shrink."""

import importlib
import sys
from pathlib import Path

import pytest

ROOMS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("room", "module", "name", "least"),
    [
        ("approval", "program_runners", "RUNNERS", 160),
        ("cli", "clone_forms", "FOREIGN", 46),
        ("cli", "archive_mutations", "MUTATIONS", 57),
        ("cli", "test_denied_execution", "DETOURS", 26),
        ("telemetry", "test_secrets", "SECRETS", 80),
        ("telemetry", "test_random_words", "SHAPES", 15),
        ("security", "benign_lines", "BENIGN", 100),
        ("security", "test_fresh_lines", "LINES", 310),
    ],
)
def test_attack_list_is_not_shortened(
    room: str, module: str, name: str, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOMS / room), str(ROOMS / "cli"), *sys.path])

    found = getattr(importlib.import_module(module), name)

    assert len(set(found)) >= least
