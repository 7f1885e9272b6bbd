"""What an opened folder warns about: rules and hooks that do not count, because the user has not trusted them."""

from metier.definitions.policy_file import POLICY_FILE, read_policy_file
from metier.definitions.problems import Problem
from metier.errors import ConfigError
from metier.runtime.host import Host
from metier.skills.trust.workspace_trust import digest_bytes


def list_withheld(place: Host) -> tuple[Problem, ...]:
    """The policy of a trusted folder that is no longer what was trusted. Settings speak for themselves."""
    try:
        policy = read_policy_file(place.workspace)
    except ConfigError:
        return ()
    if not place.trust.is_trusted or place.trust.counts("policy", digest_bytes(policy)):
        return ()
    return (
        Problem(
            severity="warning",
            code="policy_withheld",
            message="The policy changed since you trusted this folder: what it allows does not count",
            file=POLICY_FILE,
            hint="Read it, then run `agent trust`",
        ),
    )
