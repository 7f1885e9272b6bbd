"""The file with the rules of the host, as it stands. Its rules are read in `approval`."""

from pathlib import Path

from metier.definitions.files.contained_path import is_absent
from metier.definitions.problems import Problem
from metier.definitions.skills.skill_file import MAX_FILE_BYTES, read_skill_file
from metier.errors import ConfigError

POLICY_FILE = ".agent/policy.yaml"
"""The rules of the host, for every run in the workspace."""


def read_policy_file(workspace: Path) -> bytes:
    """The host's rules as they stand; nothing where there is no such file."""
    file = workspace / POLICY_FILE
    if is_absent(file):
        return b""
    # A link to nowhere is not "no rules", and a link to a device has no end.
    found = read_skill_file(file, limit=MAX_FILE_BYTES, within=workspace)
    if isinstance(found, Problem):
        raise ConfigError(f"The policy '{file}' cannot be used: {found.message}", hint="Fix or remove it")
    return found
