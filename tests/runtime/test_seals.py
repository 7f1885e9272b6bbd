"""Seals of runs that older versions started are still recognized."""

from pathlib import Path

import pytest

from metier.engine.entries.entry import parse_entry
from metier.engine.entries.run import RunStarted
from metier.runtime.records.signatures import digest_start

CORPUS = Path(__file__).parents[1] / "corpus"


@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        ("0.1.0-adopted", "95279121605d69601d851474a2a56f552c7801b4eb77fbc920a98b50d6dfb1e9"),
        ("0.1.0-hooks", "f3897f8e4a9a968654b0c79502f25a80332ab6f79837df9b463a1622e621171a"),
    ],
)
def test_start_of_an_older_run_has_its_0_2_hash(name: str, recorded: str) -> None:
    entry = parse_entry((CORPUS / f"{name}.jsonl").read_bytes().splitlines()[0])

    assert isinstance(entry, RunStarted)
    assert digest_start(entry) == recorded
