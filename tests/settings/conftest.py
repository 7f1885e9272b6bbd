"""A work folder with its own home and no variables of this machine."""

import os
from pathlib import Path

import pytest

from metier.settings.keys import OLDER_NAMES


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty current directory; the folder `home` is next to it."""
    for name in [*os.environ]:
        if name.startswith("AGENT_") or name in OLDER_NAMES.values():
            monkeypatch.delenv(name)
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(here)
    return here
