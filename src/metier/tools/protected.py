"""Files that a model must not write: they control its permissions, run by themselves, or have secrets. Pure.

Names are compared as by the most lenient file system: case, invisible characters and trailing dots are ignored.
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
"""Protected names of folders or files anywhere in a path, with the reason."""

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
"""Files that programs read without being told to, in any folder. They name programs, have code that runs with the next
`git diff`, `rg`, `pytest`, `python`, shell or debugger, or instruct the next agent. Files that a user runs by name
(`Makefile`, `package.json`, `setup.py`) are not listed, because writing them is ordinary work."""
_RUNNING_PLACES = (".vscode/tasks.json", ".vscode/settings.json", ".vscode/launch.json", ".cargo/config.toml")
"""The same by the end of the path, because the name alone is too common."""
_NO_SECRETS = ("*.example", "*.sample", "*.template", "*.dist")
"""Templates of secrets files, which have no secrets."""

OWN_FILES = ("agent.yaml", "agent.yml", "context/system_prompt.md", "context/soul.json", "context/user_profile.json")
"""Settings and standing instructions, at the top of the workspace."""


INSTRUCTIONS = ("AGENTS.md", "CLAUDE.md", "GEMINI.md", ".mcp.json")
"""Instructions and servers for the next run, at the top of the workspace. The model may write one after an approval; a
sandboxed program can neither change nor create one."""

STANDING_FOLDERS = (".agent", ".agents", ".nanobot", ".claude", ".git")
"""Folders at the top of the workspace that take effect as soon as they exist."""

SECRETS_REASON = "keys and passwords"


def protected_name(name: str) -> str | None:
    """Return the reason like `protected`, for a single name in any folder."""
    folded = _fold(name)
    return _FOLDERS.get(folded) or (SECRETS_REASON if _is_secret(folded) else None)


def protected(path: str, *, own_folders: Iterable[str] = ()) -> str | None:
    """Return why a canonical path must not be written, in words that follow "holds"; None if it may.

    `own_folders` are more folders of the agent below the same root, such as the runs.
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
    """Return True for a file whose writing is close to running a program: it needs approval unless a rule names it."""
    parts = [_fold(part) for part in path.split("/") if part not in {"", "."}]
    if "/".join(parts[-2:]) in _RUNNING_PLACES:
        return True
    # Python runs the `import` lines of a `.pth` file in its site packages at every start.
    return bool(parts) and (parts[-1] in _RUNNING or parts[-1].endswith(".pth"))


def recorded(path: str, *, own_folders: Iterable[str]) -> str | None:
    """Return the reason like `protected`, only for the agent's own folders."""
    whole = _fold_path(path)
    for folder in own_folders:
        own = _fold_path(folder)
        if own and (whole == own or whole.startswith(f"{own}/")):
            return "the agent's own records and skills"
    return None


def is_closed(path: str) -> bool:
    """Return True for keys of stores and tokens of servers: no tool may read them if the home is the workspace."""
    parts = [_fold(part) for part in path.split("/") if part not in {"", "."}]
    return any(pair in ((".agent", "keys"), (".agent", "servers")) for pair in pairwise(parts))


def _fold_path(path: str) -> str:
    return "/".join(_fold(part) for part in path.split("/") if part not in {"", "."})


def _is_secret(name: str) -> bool:
    return bool(_compile(_SECRETS).match(name)) and not _compile(_NO_SECRETS).match(name)


@cache
def _compile(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Compile all patterns to one expression, because a scan of the workspace tests every name."""
    return re.compile("|".join(translate(pattern) for pattern in patterns))


def _fold(name: str) -> str:
    """Return one form for all names that some file system treats alike; `.git::$DATA` is `.git` on Windows."""
    plain = name
    if not name.isascii():
        letters = unicodedata.normalize("NFKC", name)
        plain = "".join(letter for letter in letters if unicodedata.category(letter) != "Cf")
    # Windows ignores dots and blanks at the end of a name; HFS+ ignores the invisible characters removed above.
    plain = plain.casefold().split(":", 1)[0].rstrip(". ") or plain
    return _SHORT_NAMES.get(plain, plain)
