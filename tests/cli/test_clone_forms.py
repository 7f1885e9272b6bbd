"""Detection of files created by the user, for many ways in which files get into a folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from clone_forms import FOREIGN, OWN
from run_workspace import SKILL, Workspace

UNZIP = """import os, sys, time, zipfile
for member in zipfile.ZipFile(sys.argv[1]).infolist():
    path = zipfile.ZipFile(sys.argv[1]).extract(member)
    moment = time.mktime((*member.date_time, 0, 0, -1))
    os.utime(path, (moment, moment))
"""
"""Unpack an archive like `unzip`."""
FILES = {
    "agent.yaml": "{}",
    ".agent/policy.yaml": "rules: []\n",
    ".agent/skills/s/SKILL.md": SKILL.format(name="s", description="d", body="x"),
    "sub/agent.yaml": "{}",
}


@pytest.fixture(scope="module")
def upstreams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home and foreign repositories; each test has a copy."""
    base = tmp_path_factory.mktemp("upstreams")
    home = base / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\n\tname = a\n\temail = a@example.org\n[init]\n\tdefaultBranch = main\n")
    for name, below in {"up": "", "up.agent": ".agent/", "up.skill": ".agent/skills/"}.items():
        folder = base / name
        for path, text in FILES.items():
            if path.startswith(below):
                file = folder / path.removeprefix(below)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
        commit = "git commit -q -m all --date=2020-01-02T03:04:05Z"
        run_script(base, f"export HOME={home}; cd {folder}; git init -q --template=; git add -A; {commit}; git gc -q")
    (base / "unzip.py").write_text(UNZIP)
    return base


@pytest.fixture
def place(upstreams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(upstreams, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AGENT_TRUST", raising=False)
    return tmp_path


def run_script(place: Path, script: str) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    moment = {"GIT_COMMITTER_DATE": "2020-01-02T03:04:05Z"}
    names = {"UP": str(place / "up"), "W": str(place / "w"), "PYTHON": sys.executable, "UNZIP": str(place / "unzip.py")}
    done = subprocess.run(
        ["sh", "-ec", script], cwd=place, env={**kept, **moment, **names}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def show_state(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.chdir(place / "w")
    capsys.readouterr()
    assert Workspace(place / "w").agent("trust", "--show", "--json") == 0
    return str(json.loads(capsys.readouterr().out)["state"])


@pytest.mark.parametrize("form", FOREIGN)
def test_files_of_another_user_are_not_trusted(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    run_script(place, FOREIGN[form])

    assert show_state(place, monkeypatch, capsys) == "not trusted"


@pytest.mark.parametrize("form", OWN)
def test_files_created_by_the_user_are_trusted(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    run_script(place, OWN[form])

    assert show_state(place, monkeypatch, capsys) == "own"


def test_fetch_from_the_users_own_remote_asks_only_if_agent_files_change(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_script(place, OWN["pushed to a remote"])
    assert show_state(place, monkeypatch, capsys) == "own"

    run_script(place, "cd $W; git fetch -q; git pull -q; chmod 600 .agent/policy.yaml")
    assert show_state(place, monkeypatch, capsys) == "own"

    run_script(
        place,
        "git clone -q $W.bare $W.other; cd $W.other; echo '# more' >> .agent/policy.yaml; git commit -q -a -m x; "
        "git push -q; cd $W; git pull -q",
    )
    assert show_state(place, monkeypatch, capsys) == "not trusted"
    assert Workspace(place / "w").agent("trust") == 0
    assert show_state(place, monkeypatch, capsys) == "trusted"
