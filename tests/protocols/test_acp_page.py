"""The session on the editors page, played against the command."""

import json
from pathlib import Path
from typing import Any

from acp_peer import Editor
from page_sessions import is_part
from run_workspace import Workspace

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "editor.md"


def test_the_session_matches_the_page(home: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "work")
    assert workspace.agent("init", "--provider", "offline") == 0
    text = PAGE.read_text(encoding="utf-8").replace("/home/you/work", str(workspace.folder))
    sent: list[dict[str, Any]] = [json.loads(line[2:]) for line in text.splitlines() if line.startswith("→ ")]
    wanted: list[dict[str, Any]] = [json.loads(line[2:]) for line in text.splitlines() if line.startswith("← ")]
    assert len(sent) == len(wanted) > 0

    with Editor(workspace.folder) as editor:
        session: dict[str, Any] = {}
        for request, answer in zip(sent, wanted, strict=True):
            found = editor.request(request["method"], **request["params"], **session)
            if "sessionId" in found:
                session = {"sessionId": found["sessionId"]}

            assert is_part(answer["result"], found)
        assert editor.close() == 0
    assert "open tasks" in editor.get_said()
