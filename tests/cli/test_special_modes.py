"""No run leaves a setuid or setgid file."""

import stat
import sys

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")


def test_a_command_that_sets_a_setuid_mode_is_denied_in_the_permissive_profile(
    workspace: Workspace, model: ModelServer
) -> None:
    file = workspace.write("tool", "#!/bin/sh\n")
    model.follow(calls("Bash", command="chmod 6755 tool"), says("Done."))

    assert workspace.agent("run", "-q", "Prepare the tool", "--profile", "permissive") == 0

    assert not file.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)
    assert "gives a file the rights of its owner" in model.received[-1]["messages"][-1]["content"]
    (refused,) = [event for event in workspace.events() if event["event_type"] == "call_refused"]
    assert refused["payload"]["arguments"] == {"command": "chmod 6755 tool"}


def test_a_rewritten_file_loses_its_setuid_mode(workspace: Workspace, model: ModelServer) -> None:
    file = workspace.write("tool", "#!/bin/sh\n")
    file.chmod(0o6755)
    model.follow(calls("Write", path="tool", content="#!/bin/sh\necho new\n"), says("Done."))

    assert workspace.agent("run", "-q", "Prepare the tool", "--profile", "permissive") == 0

    assert file.read_text(encoding="utf-8").endswith("new\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o755
