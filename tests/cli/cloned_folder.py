"""A cloned repository, for tests of what its files may do."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from run_workspace import Workspace

TOOLSET = """from pathlib import Path

from metier.tools.toolsets import AgentToolset

Path({mark!r}).write_text("ran")


class Tools(AgentToolset):
    async def nothing(self) -> dict[str, object]:
        \"\"\"Do nothing.\"\"\"
        return {{"success": True, "result": "", "message": ""}}
"""


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(["git", *identity, *words], cwd=folder, env=clean, check=True, capture_output=True)


def fill(clone: Workspace, files: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Clone a foreign commit with these files."""
    upstream = clone.folder.with_name("upstream")
    for name, text in files.items():
        file = upstream / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    git(upstream, "init", "-q")
    git(upstream, "add", "-A", "-f")
    git(upstream, "commit", "-q", "-m", "all")
    target = clone.folder.with_name("cloned")
    git(clone.folder.parent, "clone", "-q", str(upstream), str(target))
    monkeypatch.chdir(target)
    return Workspace(target)
