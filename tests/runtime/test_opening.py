"""Opening a host for a folder: it reports the folder's trust and requires a decision."""

import json
from pathlib import Path

import pytest

from metier.runtime.host import Host
from metier.runtime.opened_host import open_host
from metier.settings.sections import Settings


def test_a_host_requires_a_trust_decision(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="trust"):
        Host(settings=Settings(), workspace=tmp_path, home=tmp_path, environ={})  # pyright: ignore[reportCallIssue]


def test_a_clone_is_not_trusted_and_the_caller_gets_a_warning(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "clone"
    home.mkdir()
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "config").write_text('[remote "origin"]\n\turl = https://example.invalid/x.git\n')
    (folder / "agent.yaml").write_text(json.dumps({"runtime": {"profile": "permissive"}}))

    opened = open_host(folder, environ={}, home=home, config=None)

    assert not opened.host.trust.is_trusted
    assert opened.host.settings.runtime.profile == "guarded"
    assert "folder_not_trusted" in [problem.code for problem in opened.warnings]
