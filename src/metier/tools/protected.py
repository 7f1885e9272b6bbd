"""Files that a model must not write: they control its permissions, run by themselves, or hold secrets. Pure.

Names are compared as the most forgiving file system would: without case, invisible characters and trailing dots.
"""

import re
import unicodedata
from collections.abc import Iterable
from fnmatch import translate
from functools import cache
from itertools import pairwise

_FOLDERS = {
    ".git": "Git's own files",
    ".hg": "Mercurial's own files",
    ".svn": "Subversion's own files",
    ".githooks": "hooks, which run by themselves",
    ".husky": "hooks, which run by themselves",
    ".agent": "the agent's own rules, skills and tasks",
    ".agents": "the agent's own rules, skills and tasks",
    ".nanobot": "the agent's own rules, skills and tasks",
    ".claude": "the agent's own rules, skills and tasks",
    ".ssh": "keys and passwords",
    ".gnupg": "keys and passwords",
    ".aws": "keys and passwords",
    ".azure": "keys and passwords",
    ".kube": "keys and passwords",
    ".docker": "keys and passwords",
}
"""By the name of a folder, or of a file, anywhere on the way."""

_SHORT_NAMES = {"git~1": ".git", "agent~1": ".agent", "agents~1": ".agents", "nanobo~1": ".nanobot"}
"""Short names of these files on some Windows file systems."""

_SECRETS = (
    ".env", ".env.*", "*.env", ".envrc", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx",
    "*.ppk", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".netrc", "_netrc", ".pgpass", ".my.cnf", ".npmrc",
    ".pypirc", ".git-credentials", ".htpasswd", ".dockercfg", "credentials.json", "secrets.y*ml", "secrets.json",
    "secrets.toml",
)  # fmt: skip
_RUNNING = frozenset((
    ".gitattributes", ".gitmodules", ".gitconfig", ".ripgreprc", "conftest.py", "sitecustomize.py",
    "usercustomize.py", ".pythonrc", ".pythonrc.py", ".pdbrc", ".gdbinit", ".lldbinit", ".bashrc", ".bash_profile",
    ".bash_login", ".bash_logout", ".bash_aliases", ".profile", ".zshrc", ".zshenv", ".zprofile", ".zlogin", ".inputrc",
    ".vimrc", ".exrc", ".nvimrc", ".pre-commit-config.yaml", "lefthook.yml", "lefthook.yaml", ".curlrc", ".wgetrc",
    ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs", ".tool-versions", ".mise.toml", "agents.md", "claude.md", "gemini.md",
))  # fmt: skip
"""Read by programs that were not asked to run them, whatever folder they are in: what is there names programs, or
is code that starts with the next `git diff`, `rg`, `pytest`, `python`, shell or debugger, or an instruction to the next
agent. Files that a user runs by
name (`Makefile`, `package.json`, `setup.py`) are not here: writing those is the work."""
_RUNNING_PLACES = (".vscode/tasks.json", ".vscode/settings.json", ".vscode/launch.json", ".cargo/config.toml")
"""The same by the end of the path: the name alone says little."""
_NO_SECRETS = ("*.example", "*.sample", "*.template", "*.dist")
"""Names of templates that show the shape of a secrets file."""

OWN_FILES = ("agent.yaml", "agent.yml", "context/system_prompt.md", "context/soul.json", "context/user_profile.json")
"""Settings and standing instructions, at the top of the workspace."""


INSTRUCTIONS = ("AGENTS.md", "CLAUDE.md", "GEMINI.md", ".mcp.json")
"""At the top of the workspace: what the next run is told and offered. The work may be to write one, which is asked
about; a program in a sandbox changes none that is there and makes none that is not."""

STANDING_FOLDERS = (".agent", ".agents", ".nanobot", ".claude", ".git")
"""At the top of the workspace; each means something as soon as it exists."""

SECRETS_REASON = "keys and passwords"


def protected_name(name: str) -> str | None:
    """As `protected`, for a name alone, wherever it is."""
    folded = _fold(name)
    return _FOLDERS.get(folded) or (SECRETS_REASON if _is_secret(folded) else None)


def protected(path: str, *, own_folders: Iterable[str] = ()) -> str | None:
    """Why a canonical path must not be written, in words that follow "holds"; None where it may.

    `own_folders` are further folders of the agent's own beneath the same root, such as the run store.
    """
    parts = [_fold(part) for part in path.split("/") if part not in {"", "."}]
    for part in parts:
        if reason := _FOLDERS.get(part):
            return reason
    whole = "/".join(parts)
    if whole in OWN_FILES:
        return "the agent's own settings and instructions"
    if reason := recorded(path, own_folders=own_folders):
        return reason
    return SECRETS_REASON if parts and _is_secret(parts[-1]) else None


def runs_by_itself(path: str) -> bool:
    """Writing this file is close to running a program: it is asked about unless a rule names it."""
    parts = [_fold(part) for part in path.split("/") if part not in {"", "."}]
    if "/".join(parts[-2:]) in _RUNNING_PLACES:
        return True
    # Lines of a `.pth` file run with every start of the Python whose packages it lies among.
    return bool(parts) and (parts[-1] in _RUNNING or parts[-1].endswith(".pth"))


def recorded(path: str, *, own_folders: Iterable[str]) -> str | None:
    """As `protected`, for the agent's own folders alone."""
    whole = _fold_path(path)
    for folder in own_folders:
        own = _fold_path(folder)
        if own and (whole == own or whole.startswith(f"{own}/")):
            return "the agent's own records and skills"
    return None


def is_closed(path: str) -> bool:
    """Keys of the user's stores and tokens of servers, where the home is the workspace: no tool reads them."""
    parts = [_fold(part) for part in path.split("/") if part not in {"", "."}]
    return any(pair in ((".agent", "keys"), (".agent", "servers")) for pair in pairwise(parts))


def _fold_path(path: str) -> str:
    return "/".join(_fold(part) for part in path.split("/") if part not in {"", "."})


def _is_secret(name: str) -> bool:
    return bool(_compile(_SECRETS).match(name)) and not _compile(_NO_SECRETS).match(name)


@cache
def _compile(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """One expression for all: a scan of a workspace asks for each of its names."""
    return re.compile("|".join(translate(pattern) for pattern in patterns))


def _fold(name: str) -> str:
    """One spelling for all that some file system takes for the same name; `.git::$DATA` is `.git` on Windows."""
    plain = name
    if not name.isascii():
        letters = unicodedata.normalize("NFKC", name)
        plain = "".join(letter for letter in letters if unicodedata.category(letter) != "Cf")
    plain = plain.casefold().split(":", 1)[0].rstrip(". ") or plain
    return _SHORT_NAMES.get(plain, plain)
