"""The file with the host's rules. `approval` parses it."""

from pathlib import Path

from metier.definitions.files.contained_path import is_absent
from metier.definitions.problems import Problem
from metier.definitions.skills.skill_file import MAX_FILE_BYTES, read_skill_file
from metier.errors import ConfigError

POLICY_FILE = ".agent/policy.yaml"
"""Rules of the host, for every run in the workspace."""


def read_policy_file(workspace: Path) -> bytes:
    """Return the content of the host's rule file, or empty bytes if it doesn't exist."""
    file = workspace / POLICY_FILE
    if is_absent(file):
        return b""
    # A broken link must not count as "no rules", and reading a device would never end.
    found = read_skill_file(file, limit=MAX_FILE_BYTES, within=workspace)
    if isinstance(found, Problem):
        raise ConfigError(f"The policy '{file}' cannot be used: {found.message}", hint="Fix or remove it")
    return found
