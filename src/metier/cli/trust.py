"""`agent trust`: trust the files of a cloned workspace. `runtime.workspace.trust` implements it."""

import os
from pathlib import Path
from typing import Annotated

import typer

from metier.cli.shared.command_options import AsJson
from metier.cli.shared.context import current_workspace, home_folder
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.definitions.policy_file import read_policy_file
from metier.errors import MetierError, UsageError
from metier.runtime.host import Host
from metier.runtime.opened_host import OpenedHost, open_host
from metier.runtime.workspace.trust import list_permissions, trust_workspace
from metier.settings.resolution import LoadedSettings
from metier.skills.git_clones import find_origin
from metier.skills.workspace_trust import digest_bytes, list_agent_files, revoke_trust

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def trust(
    *,
    show: Annotated[bool, typer.Option("--show", help="Show the trust status and the affected files.")] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="Revoke trust.")] = False,
    as_json: AsJson = False,
) -> None:
    """Trust the files of a cloned workspace.

    Code of untrusted skills never runs.
    """
    if show and revoke:
        raise UsageError("--show and --revoke are mutually exclusive", hint="Use one of them")
    workspace, home = current_workspace(), home_folder()
    if revoke:
        _revoke(workspace, home, as_json=as_json)
        return
    opened = open_folder(workspace, home)
    loaded = opened.loaded
    if not show:
        record(opened.host, loaded)
        # Read again: settings that were held back count now.
        loaded = open_folder(workspace, home).loaded
    _write(opened.host, loaded, as_json=as_json)


def trust_new_folder(workspace: Path) -> None:
    """Trust a folder whose files the user just created. If that fails in a clone, print a warning."""
    try:
        home = home_folder()
        opened = open_folder(workspace, home)
        record(opened.host, opened.loaded)
    except MetierError as error:
        if find_origin(workspace):
            warn_line(f"warning: This folder is not trusted yet: {error.message}; run `agent trust` later")


def is_trusted_folder(workspace: Path) -> bool:
    """Return True if the folder's current settings and policy are trusted like the user's own."""
    try:
        loaded = open_folder(workspace, home_folder()).loaded
    except MetierError:
        return False
    return _name_state(loaded, digest_bytes(read_policy_file(workspace))) in ("own", "trusted")


def renew_trust(workspace: Path) -> None:
    """Trust the changed settings of a folder that was trusted before the user's command changed them."""
    # A folder without an origin is the user's own and needs no record.
    if find_origin(workspace):
        trust_new_folder(workspace)


def open_folder(workspace: Path, home: Path) -> OpenedHost:
    return open_host(workspace, environ=os.environ, home=home, config=None)


def record(host: Host, loaded: LoadedSettings) -> None:
    """Store the trust. Raises `UsageError` if it can't be written."""
    try:
        trust_workspace(host, words=loaded.words, origin=loaded.trust.origin)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            f"Cannot save trust in '{host.home / '.agent/trust'}': {reason}",
            hint="Make the folder writable, or set AGENT_TRUST=all to trust every folder",
        ) from error


def _revoke(workspace: Path, home: Path, *, as_json: bool) -> None:
    was_trusted = revoke_trust(workspace, home=home)
    if as_json:
        write_json({"workspace": str(workspace), "trusted": False, "was_trusted": was_trusted})
        return
    warn_line("Trust revoked" if was_trusted else "This folder was not trusted")


def _write(host: Host, loaded: LoadedSettings, *, as_json: bool) -> None:
    trust = loaded.trust
    policy = digest_bytes(read_policy_file(host.workspace))
    state = _name_state(loaded, policy)
    brings, decides = list(list_agent_files(host.workspace)), list_permissions(host, loaded.carried)
    if as_json:
        write_json(
            {
                "workspace": str(host.workspace),
                "state": state,
                "origin": trust.origin or None,
                "brings": brings,
                "decides": decides,
                "trusted_at": trust.record.trusted_at.isoformat() if trust.record else None,
            }
        )
        return
    write_line(f"{state}: {host.workspace}" + (f" ({trust.origin})" if trust.origin else ""))
    for name in brings:
        write_line(f"  file     {name}")
    for line in decides:
        write_line(f"  setting  {line}")


def _name_state(loaded: LoadedSettings, policy: str) -> str:
    trust = loaded.trust
    if not trust.origin:
        return "own"
    if trust.record is None:
        return "not trusted"
    is_same = trust.counts("settings", loaded.words) and trust.counts("policy", policy)
    return "trusted" if is_same else "changed since trusted"
