"""Evidence of an interrupted effect on the machine that resumes the run."""

import pytest

from metier.engine.entries.step import SpoolIdentity
from metier.engine.execution.recovery import Sight, judge_sight
from metier.store.machine import MachineIdentity, identify_machine

HERE = MachineIdentity(machine="here", boot="b1")


@pytest.mark.parametrize(
    ("intent", "folder", "sight"),
    [
        (SpoolIdentity(machine="here", boot="b1", folder="f"), "f", "whole"),
        (SpoolIdentity(machine="here", boot="b0", folder="f"), "f", "whole"),
        (SpoolIdentity(machine="renamed", boot="b1", folder="f"), "f", "whole"),
        (SpoolIdentity(machine="there", boot="b9", folder="f"), "f", "notes only"),
        (SpoolIdentity(machine="there", boot="", folder="f"), "f", "notes only"),
        (SpoolIdentity(machine="here", boot="b1", folder="f"), "g", "other folder"),
        (SpoolIdentity(machine="here", boot="b1", folder="f"), "", "other folder"),
        (None, "f", "notes only"),
        (None, "", "notes only"),
    ],
)
def test_a_missing_note_is_conclusive_only_in_the_same_folder_and_machine(
    intent: SpoolIdentity | None, folder: str, sight: Sight
) -> None:
    assert judge_sight(intent, folder=folder, machine=HERE) == sight


def test_the_machine_id_is_stable_and_not_the_raw_system_id() -> None:
    found = identify_machine()

    assert found == identify_machine()
    assert len(found.machine) == 16
