"""An edited approval is bound to the files at the time of the edit."""

import json
from pathlib import Path

import pytest
from workspaces import Drill, call, put

from metier.testing.scripted import says

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("edited", ["a.txt", "b.txt", "new.txt"])
async def test_a_file_changed_after_the_edit_is_asked_about_again(tmp_path: Path, edited: str) -> None:
    put(tmp_path, {"a.txt": "a\n", "b.txt": "b\n"})
    drill = Drill(tmp_path, [call("Write", path="a.txt", content="model\n"), says("Done.")])
    state = await drill.run()
    await drill.decide("approved", arguments={"path": edited, "content": "person\n"})
    put(tmp_path, {edited: "somebody else\n"})

    parked = await drill.resume(state.run_id)

    assert parked.pause is not None
    assert (tmp_path / edited).read_text() == "somebody else\n"
    (question,) = await drill.questions()
    assert question.arguments == {"path": edited, "content": "person\n"}
    assert question.asked is not None
    assert "-somebody else\n+person\n" in question.asked.preview

    await drill.decide("approved")
    done = await drill.resume(state.run_id)

    assert done.status == "completed"
    assert (tmp_path / edited).read_text() == "person\n"


async def test_a_second_edit_is_also_bound_to_its_file(tmp_path: Path) -> None:
    put(tmp_path, {"a.txt": "one two\n"})
    drill = Drill(tmp_path, [call("Edit", path="a.txt", old="one", new="1"), says("Done.")])
    state = await drill.run()
    await drill.decide("approved", arguments={"path": "a.txt", "old": "two", "new": "2"})
    put(tmp_path, {"a.txt": "one two three\n"})

    parked = await drill.resume(state.run_id)

    assert parked.pause is not None
    assert (tmp_path / "a.txt").read_text() == "one two three\n"


async def test_an_edited_call_runs_if_nothing_changed(tmp_path: Path) -> None:
    put(tmp_path, {"a.txt": "a\n", "b.txt": "b\n"})
    drill = Drill(tmp_path, [call("Write", path="a.txt", content="model\n"), says("Done.")])
    state = await drill.run()
    await drill.decide("approved", arguments={"path": "b.txt", "content": "person\n"})
    put(tmp_path, {"a.txt": "another file's change is no matter\n"})

    done = await drill.resume(state.run_id)

    assert done.status == "completed"
    assert (tmp_path / "b.txt").read_text() == "person\n"


async def test_a_link_added_by_an_edit_is_bound_to_its_target(tmp_path: Path) -> None:
    put(tmp_path, {"src/x": "", "hooks/y": ""})
    (tmp_path / "to").symlink_to("src")
    drill = Drill(tmp_path, [call("Write", path="a.txt", content="x"), says("Done.")])
    state = await drill.run()
    await drill.decide("approved", arguments={"path": "to/new", "content": "x"})
    (tmp_path / "to").unlink()
    (tmp_path / "to").symlink_to("hooks")

    parked = await drill.resume(state.run_id)

    assert parked.pause is not None
    assert not list(tmp_path.glob("*/new"))
    row = (await drill.questions())[0].row
    assert json.loads(row.payload)["arguments"]["path"] == "to/new"
