"""File access through the editor: unsaved buffers are what the model reads and a step changes."""

import json
from collections.abc import Callable
from pathlib import Path

from acp_peer import Editor, Message
from model_server import ModelServer, calls, says
from run_workspace import Workspace

BOTH = {"fs": {"readTextFile": True, "writeTextFile": True}}


def hold(buffers: dict[str, str], *, option: str = "allow") -> Callable[[Message], Message]:
    """Return the answers of an editor with unsaved buffers by path, which saves and allows on request."""

    def answer(message: Message) -> Message:
        params = message["params"]
        match message["method"]:
            case "fs/read_text_file":
                path = Path(params["path"])
                return {"content": buffers.get(params["path"]) or path.read_text(encoding="utf-8")}
            case "fs/write_text_file":
                Path(params["path"]).write_text(params["content"], encoding="utf-8")
                buffers.pop(params["path"], None)
                return {}
            case _:
                return {"outcome": {"outcome": "selected", "optionId": option}}

    return answer


def list_asked(editor: Editor, method: str) -> list[Message]:
    return [message["params"] for message in editor.asked if message["method"] == method]


def test_an_unsaved_buffer_is_read_edited_and_restored_by_undo(workspace: Workspace, model: ModelServer) -> None:
    file = workspace.write("a.txt", "old\n")
    model.follow(calls("Read", path="a.txt"), calls("Edit", path="a.txt", old="old", new="new"), says("Done."))

    with Editor(workspace.folder, answer=hold({str(file): "old\nnot saved\n"})) as editor:
        editor.prompt(editor.begin(**BOTH), "Change a.txt")
        editor.close()

    assert "not saved" in json.dumps(model.received[1])
    (asked,) = list_asked(editor, "session/request_permission")
    assert " not saved" in json.dumps(asked["toolCall"]["content"])
    (saved,) = list_asked(editor, "fs/write_text_file")
    assert saved["content"] == "old\nnot saved\n"
    assert file.read_text(encoding="utf-8") == "new\nnot saved\n"
    (run_id,) = workspace.run_ids()
    assert workspace.agent("replay", run_id, "--execute") == 0
    assert workspace.agent("undo", run_id, "--yes") == 0
    assert file.read_text(encoding="utf-8") == "old\nnot saved\n"


def test_reading_a_buffer_does_not_save_it(workspace: Workspace, model: ModelServer) -> None:
    file = workspace.write("a.txt", "old\n")
    model.follow(calls("Read", path="a.txt"), says("Read."))

    with Editor(workspace.folder, answer=hold({str(file): "not saved\n"})) as editor:
        editor.prompt(editor.begin(**BOTH), "Read a.txt")

    assert "not saved" in json.dumps(model.received[1])
    assert file.read_text(encoding="utf-8") == "old\n"


def test_a_rejected_change_saves_nothing(workspace: Workspace, model: ModelServer) -> None:
    file = workspace.write("a.txt", "old\n")
    model.follow(calls("Write", path="a.txt", content="new\n"), says("Then not."))

    with Editor(workspace.folder, answer=hold({str(file): "not saved\n"}, option="reject")) as editor:
        editor.prompt(editor.begin(**BOTH), "Change a.txt")

    (asked,) = list_asked(editor, "session/request_permission")
    assert asked["toolCall"]["content"][0]["oldText"] == "not saved\n"
    assert list_asked(editor, "fs/write_text_file") == []
    assert file.read_text(encoding="utf-8") == "old\n"


def test_a_change_to_a_file_with_an_unsaved_buffer_is_a_conflict(workspace: Workspace, model: ModelServer) -> None:
    file = workspace.write("a.txt", "old\n")
    model.follow(calls("Edit", path="a.txt", old="not saved", new="new"), says("Please save it."))

    with Editor(workspace.folder, answer=hold({str(file): "not saved\n"})) as editor:
        editor.prompt(editor.begin(fs={"readTextFile": True}), "Change a.txt")

    assert "changes in the editor that are not saved" in json.dumps(model.received[1])
    assert file.read_text(encoding="utf-8") == "old\n"


def test_denied_files_are_not_requested_from_the_editor(workspace: Workspace, model: ModelServer) -> None:
    workspace.write(".env", "A=1\n")
    model.follow(calls("Read", path="../outside.txt"), calls("Write", path=".git/config", content="x"), says("No."))

    with Editor(workspace.folder, answer=hold({})) as editor:
        editor.prompt(editor.begin(**BOTH), "Look around")

    assert list_asked(editor, "fs/read_text_file") == []
    assert list_asked(editor, "fs/write_text_file") == []


def test_files_are_read_from_disk_if_the_editor_does_not_serve_them(workspace: Workspace, model: ModelServer) -> None:
    workspace.write("a.txt", "old\n")
    model.follow(calls("Read", path="a.txt"), says("Read."))

    with Editor(workspace.folder, answer=hold({})) as editor:
        editor.prompt(editor.begin(), "Read a.txt")

    assert list_asked(editor, "fs/read_text_file") == []
    assert "old" in json.dumps(model.received[1])
