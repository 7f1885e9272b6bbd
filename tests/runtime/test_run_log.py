"""The events of a run tell whether lost journal entries would be repeated."""

from pathlib import Path

import pytest

from metier.engine.entries.entry import needs_flush, parse_entry
from metier.engine.projection import project
from metier.engine.state.fold import apply
from metier.engine.state.run_state import RunState
from metier.runtime.records.run_log import is_repeated

CORPUS = sorted((Path(__file__).resolve().parent.parent / "corpus").glob("*.jsonl"))


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_the_events_of_an_entry_show_whether_it_was_flushed(file: Path) -> None:
    state = RunState("a-run")
    for line in file.read_bytes().splitlines():
        entry = parse_entry(line)
        apply(state, entry)
        events = project(entry, state)
        if not events:
            continue  # the log does not tell of it, so its loss is not noticed
        assert needs_flush(entry) is not all(map(is_repeated, events)), entry.kind
