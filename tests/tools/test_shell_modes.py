"""No command sets setuid or setgid, in any spelling and through any program."""

import pytest

from metier.tools.options import ShellOptions
from metier.tools.shell.allowlist import find_refusal
from metier.tools.shell.harmless import CommandFolders
from metier.tools.shell.line import parse_line

SPECIAL = [
    "chmod 6755 a", "chmod 4755 a", "chmod 2755 a", "chmod 06755 a", "chmod 004755 a", "chmod u+s a", "chmod g+s a",
    "chmod +s a", "chmod ug+s a", "chmod a+xs a", "chmod u=rwxs a", "chmod u+x,g+s a", "chmod -R u+s .",
    "chmod =4755 a",
    "chmod +4000 a", "chmod -v -- 4755 a", "/bin/chmod 4755 a", "install -m 4755 a b", "install -m4755 a b",
    "install --mode=u+s a b", "install --mo=4755 a b", "install -Dm4755 a b", "mkdir -m 2775 d", "mkdir --mode=g+s d",
    "sudo chmod 4755 a", "env X=1 chmod u+s a", "find . -exec chmod u+s {} +", "ls | xargs chmod 4755",
    "sh -c 'chmod 4755 a'", 'bash -lc "true && chmod u+s a"', "for f in a; do chmod 4755 $f; done", "(chmod u+s a)",
    "X=$(chmod 6755 a)", "python3 -c 'import os; os.chmod(\"a\", 0o4755)'", "setcap cap_setuid+ep a",
    "echo x && chmod u+s a",
    "python3 -c 'import os, stat; os.chmod(\"a\", stat.S_ISUID)'", "chmod \"6755\" a", "ch\\mod 4755 a",
]  # fmt: skip
ORDINARY = [
    "chmod +x a", "chmod 755 a", "chmod 0755 a", "chmod u+x,g-w a", "chmod -s a", "chmod u-s a", "chmod -4000 a",
    "chmod 00644 a", "chmod -R go-w .", "chmod +t d", "chmod 1777 d", "chmod a=rX a", "install -m 755 a b",
    "mkdir -p d", "git commit -m 'Refuse chmod 4755 x'", "echo 'chmod u+s a'",
    "mkdir -m 700 d", "grep -rn chmod src", "echo 4755", "git commit -m 'Fix chmod of scripts'", "ls -s", "mkdir 2024",
    "for f in a; do chmod +x $f; done", "find . -perm 4755", "install -d 2024 b",
]  # fmt: skip


def refuse(text: str) -> str:
    return find_refusal(parse_line(text), ShellOptions(), CommandFolders("/repo", ("/repo",)), text=text)


@pytest.mark.parametrize("text", SPECIAL)
def test_setuid_and_setgid_modes_are_denied(text: str) -> None:
    assert "gives a file the rights of its owner" in refuse(text)


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_modes_are_allowed(text: str) -> None:
    assert refuse(text) == ""
