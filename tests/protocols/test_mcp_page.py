"""The session on the MCP clients page, played against the command."""

import json
from pathlib import Path

from mcp_peer import ProcessPeer
from page_sessions import is_part
from run_workspace import Workspace

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "mcp-clients.md"


def test_the_session_matches_the_page(home: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "work")
    assert workspace.agent("init", "--provider", "offline") == 0
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    sent = [json.loads(line[2:]) for line in lines if line.startswith("→ ")]
    wanted = [json.loads(line[2:]) for line in lines if line.startswith("← ")]
    assert len(sent) == len(wanted) > 0

    with ProcessPeer(workspace.folder) as peer:
        for request, answer in zip(sent, wanted, strict=True):
            found = peer.request(request["method"], **request["params"])

            assert is_part(answer.get("result", answer.get("error")), found.get("error", found))
        assert peer.close() == 0
