"""Journals of earlier releases keep their meaning."""

from pathlib import Path
from typing import get_args

import pytest

from metier.engine.entries.entry import Entry, parse_entry
from metier.engine.projection import project
from metier.engine.state.fold import apply
from metier.engine.state.run_state import RunState

CORPUS = Path(__file__).resolve().parent.parent / "corpus"
FILES = sorted(CORPUS.glob("*.jsonl"))
ENDINGS = {
    "skills-and-hand-off": "completed",
    "approvals-and-input": "completed",
    "retry-fallback-abort": "failed",
    "failure-told": "failed",
    "limits-raised": "completed",
    "changed-code": "completed",
    "model-changed": "completed",
    "message-added": "completed",
    "undone": "completed",
    "hooks": "completed",
    "repair-and-signal": "completed",
    "adopted": "completed",
    "in-doubt": "completed",
    "in-doubt-elsewhere": "completed",
    "task": "completed",
    "step": "completed",
    "children-together": "completed",
    "skill-that-delegates": "completed",
    "skill-that-is-called": "completed",
}


def read(file: Path) -> list[Entry]:
    return [parse_entry(line) for line in file.read_bytes().splitlines()]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_journal_of_an_earlier_release_can_be_folded_and_rendered(file: Path) -> None:
    state = RunState("a-run")
    told = 0
    for entry in read(file):
        apply(state, entry)
        told += len(project(entry, state))

    name = file.stem.partition("-")[2]
    assert state.status == ENDINGS[name]
    assert told > 5


def test_every_kind_of_entry_is_in_the_corpus() -> None:
    kinds = {kind.__struct_config__.tag for kind in get_args(Entry.__value__)}

    assert kinds - {entry.kind for file in FILES for entry in read(file)} == set()
