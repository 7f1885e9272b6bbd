"""Open the remote agent that a run is answered by, as the settings name it."""

from metier.definitions.nearest import hint_nearest
from metier.errors import UsageError
from metier.providers.absent import AbsentProvider
from metier.providers.base import Provider
from metier.providers.connection import Connection
from metier.providers.facts import FactBook
from metier.providers.failures import MissingKey
from metier.providers.offline.progress import find_task
from metier.providers.registry import REMOTE
from metier.providers.remote_options import read_agents
from metier.runtime.host import Host
from metier.runtime.workspace.prepared_run import PreparedRun


def open_remote(place: Host, facts: FactBook, *, run: PreparedRun) -> Provider:
    """Raises `UsageError` for a name that the settings do not have. Without its token it is there and not asked."""
    from metier.providers.a2a.provider import RemoteAgent, RemoteAgentProvider

    name = place.settings.model.name
    known = read_agents(place.settings.model.providers.a2a.agents)
    options = known.get(name)
    if options is None:
        hint = hint_nearest(name, list(known)) or "Name it in model.providers.a2a.agents of your settings"
        raise UsageError(f"There is no remote agent {name!r}", hint=hint)
    token = place.environ.get(options.token_env, "").strip() if options.token_env else ""
    if options.token_env and not token:
        missing = MissingKey(f"Remote agent {name!r} has no token", hint=f"Set {options.token_env} in the environment")
        return AbsentProvider(REMOTE, missing)
    agent = RemoteAgent(name=name, url=options.url, token=token, timeout_seconds=options.timeout_seconds)
    connection = Connection(facts=facts, shared=place.clients)
    return RemoteAgentProvider(agent, connection, run_id=run.folder.name, find_task=find_task)
