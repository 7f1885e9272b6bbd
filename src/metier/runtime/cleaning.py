"""Redaction for a host: the secrets of its environment and of its MCP servers."""

import os
from functools import lru_cache
from pathlib import Path

from metier.definitions.files.contained_path import is_absent
from metier.providers.options import read_agents
from metier.runtime.host import Host
from metier.telemetry.environment_secrets import list_secret_values
from metier.telemetry.redaction import Redactor, build_redactor
from metier.telemetry.sinks import MAX_CLEANERS, Cleaner, build_cleaner
from metier.tools.mcp.servers import (
    McpConfig,
    add_servers,
    list_server_secrets,
    load_mcp_config,
    load_shared_config,
)

SHARED_FILE = ".mcp.json"
"""Shared MCP configuration of several programs, at the top of the workspace."""


def load_host_config(host: Host) -> McpConfig:
    """Load the MCP servers of a host, those of Metier's own file first. Raises `ConfigError`."""
    return load_servers(host.workspace, host.settings.mcp.file)


def load_servers(workspace: Path, file: str) -> McpConfig:
    """Load the servers of `file`, and those of `.mcp.json` whose names are not in it."""
    if all(map(is_absent, (f"{workspace}/{SHARED_FILE}", os.path.join(workspace, file)))):  # noqa: PTH118
        return McpConfig()  # fast path: most workspaces have no servers, and each run calls this several times
    own = load_mcp_config(workspace / file, workspace=workspace)
    if file == SHARED_FILE:
        return own
    shared = load_shared_config(workspace / SHARED_FILE, workspace=workspace)
    return add_servers(own, shared)


def list_host_secrets(host: Host) -> tuple[str, ...]:
    """List the secrets of the host. Raises `ConfigError` if the servers can't be read."""
    servers = load_host_config(host).servers
    agents = read_agents(host.settings.model.providers.a2a.agents).values()
    tokens = [token for agent in agents if (token := host.environ.get(agent.token_env, ""))]
    settings = host.settings
    # Users choose the names of these variables, so the names need not look like those of secrets.
    named = (
        settings.notify.webhook_secret_env,
        settings.web_search.api_key_env,
        settings.routing.embeddings.api_key_env,
    )
    tokens += [value for name in named if (value := host.environ.get(name, ""))]
    return (*list_secret_values(host.environ), *list_server_secrets(servers, host.environ), *tokens)


def build_host_redactor(host: Host) -> Redactor:
    """Build the redactor for the host's secrets. Raises `ConfigError` if the servers can't be read."""
    options = host.settings.logging
    return _build_redactor(list_host_secrets(host), tuple(options.redact_names), options.redact_secrets)


def build_host_cleaner(host: Host) -> Cleaner:
    return build_cleaner(host.settings.logging, build_host_redactor(host))


# Compiling the formats of keys takes 5 ms, and a process may drive thousands of runs.
@lru_cache(maxsize=MAX_CLEANERS)
def _build_redactor(values: tuple[str, ...], names: tuple[str, ...], generic_names: bool) -> Redactor:  # noqa: FBT001
    """Build one redactor for all runs of a process with the same secrets."""
    return build_redactor(values=values, names=names, generic_names=generic_names)
