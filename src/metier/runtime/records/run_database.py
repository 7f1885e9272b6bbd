"""Whose the database of runs is: made here, or brought by a clone."""

from metier.errors import UsageError
from metier.runtime.host import Host
from metier.skills.git.clones import is_tracked
from metier.skills.trust.workspace_trust import knows_file, note_file
from metier.store.opening import DATABASE


def check_runs(place: Host) -> bool:
    """True where the database of runs is still to be made, and `note_runs` to be called then.

    What a run is pinned to is not judged again when it is resumed: settings, policy, approvals. Raises
    `UsageError` for runs that came with a clone.
    """
    database = place.runs / DATABASE
    is_inside = database.resolve().is_relative_to(place.workspace.resolve()) or database.is_relative_to(place.workspace)
    if place.trust.is_trusted or place.settings.store.backend != "sqlite" or not is_inside:
        return False
    if not database.exists():
        return True
    if is_tracked(database) or not knows_file(database, home=place.home):
        raise UsageError(
            f"The runs in {str(place.runs)!r} may have come with this folder, which you have not trusted "
            f"({place.trust.origin})",
            hint="Read what the folder brings, then run `agent trust`; or move the runs away",
        )
    return False


def note_runs(place: Host) -> None:
    note_file(place.runs / DATABASE, home=place.home)
