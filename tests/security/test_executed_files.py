"""An approval of a command covers the files that it executes: later changes are asked about again."""

import os
from pathlib import Path

import pytest
from workspaces import Drill, call, put

from metier.testing.scripted import says

pytestmark = pytest.mark.anyio

SAFE, CHANGED = "#!/bin/sh\necho safe > told\n", "#!/bin/sh\necho changed > told\n"


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("bash go.sh", "go.sh"),
        ("sh ./go", "go"),
        ("./go.sh", "go.sh"),
        ("timeout 20 bash go.sh", "go.sh"),
        ("cd sub && sh ../go.sh", "go.sh"),
        ("bash -c 'sh go.sh; true'", "go.sh"),
        ("bash -eu go.sh <<< x", "go.sh"),
        ("helper-of-mine", ".venv/bin/helper-of-mine"),
    ],
)
async def test_script_changed_after_the_approval_is_asked_about_again(tmp_path: Path, command: str, file: str) -> None:
    put(tmp_path, {file: SAFE, "sub/x": ""})
    (tmp_path / file).chmod(0o755 if not command.startswith("sh") else 0o644)
    environ = {**os.environ, "PATH": f"{tmp_path}/.venv/bin:{os.environ['PATH']}"}
    drill = Drill(tmp_path, [call("Bash", command=command), says("Done.")], environ=environ)
    state = await drill.run()
    await drill.decide("approved")
    put(tmp_path, {file: CHANGED})

    parked = await drill.resume(state.run_id)

    assert parked.pause is not None
    assert not list(tmp_path.rglob("told"))
    (question,) = await drill.questions()
    assert question.asked is not None
    assert question.asked.reason == "A file that it changes or runs was changed since"
    await drill.decide("approved")
    assert (await drill.resume(state.run_id)).status == "completed"
    assert [path.read_text() for path in tmp_path.rglob("told")] == ["changed\n"]


async def test_script_created_after_the_approval_is_asked_about_again(tmp_path: Path) -> None:
    drill = Drill(tmp_path, [call("Bash", command="bash go.sh"), says("Done.")])
    state = await drill.run()
    await drill.decide("approved")
    put(tmp_path, {"go.sh": CHANGED})

    assert (await drill.resume(state.run_id)).pause is not None
    assert not (tmp_path / "told").exists()


async def test_makefile_is_a_file_executed_by_make(tmp_path: Path) -> None:
    put(tmp_path, {"Makefile": "all:\n\techo safe > told\n"})
    drill = Drill(tmp_path, [call("Bash", command="make all"), says("Done.")])
    state = await drill.run()
    await drill.decide("approved")
    put(tmp_path, {"Makefile": "all:\n\techo changed > told\n"})

    assert (await drill.resume(state.run_id)).pause is not None
    assert not (tmp_path / "told").exists()


async def test_data_changed_after_the_approval_is_not_asked_about(tmp_path: Path) -> None:
    put(tmp_path, {"go.sh": "cat data.txt > told\n", "data.txt": "old\n"})
    drill = Drill(tmp_path, [call("Bash", command="bash go.sh data.txt"), says("Done.")])
    state = await drill.run()
    await drill.decide("approved")
    put(tmp_path, {"data.txt": "new\n"})

    assert (await drill.resume(state.run_id)).status == "completed"
    assert (tmp_path / "told").read_text() == "new\n"
