"""Open the store that holds the runs of a place."""

from metier.definitions.plugin_names import PLUGIN
from metier.runtime.host import Host
from metier.store.base import Store
from metier.store.failures import StoreUnavailable
from metier.store.opening import open_store


async def open_place_store(place: Host) -> Store:
    """The store of the settings, which may be one of a plugin. Raises `StoreUnavailable` when it cannot serve."""
    options = place.settings.store
    if not options.backend.startswith(PLUGIN):
        return await open_store(options, runs=place.runs, environ=place.environ, clock=place.clock)
    # Plugins are loaded only where one of them brings the store.
    from metier.runtime.workspace.plugins import find_plugins, get_brought

    registries = place.plugins or find_plugins(place).registries
    opening = get_brought(options.backend, [each.stores for each in registries], kind="store", failure=StoreUnavailable)
    return await opening(place.environ.get(options.database_url_env, ""))
