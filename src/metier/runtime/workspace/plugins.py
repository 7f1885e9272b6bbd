"""Plugins in a workspace: load the enabled ones and add their tools, providers and subscribers to a host."""

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager

from msgspec.structs import replace

from metier.definitions.names import PLUGIN
from metier.errors import UsageError
from metier.plugins.lifecycle import Plugins, Subscription, ask_for_layer, load_plugins, running
from metier.runtime.host import Host
from metier.runtime.workspace.policy import BUILT_IN_TOOLS, SCRIPT_TOOLS
from metier.store.failures import StoreUnavailable
from metier.telemetry.sinks import BorrowedSink


def get_plugins(host: Host) -> Plugins:
    """Load the enabled plugins without starting them."""
    options = host.settings.plugins
    taken = (*BUILT_IN_TOOLS, *SCRIPT_TOOLS, *(tool.info.name for tool in host.tools))
    return load_plugins(options.enabled, seconds=options.timeout_seconds, taken=taken)


@contextmanager
def using_plugins(host: Host, *, report: Callable[[str], None]) -> Generator[Host]:
    """Yield the host with the tools, providers and subscribers of its plugins, which run during the block."""
    seconds = host.settings.plugins.timeout_seconds
    with running(get_plugins(host), seconds=seconds, report=report) as registries:
        subscriptions = [
            Subscription(registry.plugin, subscriber, report=report, seconds=seconds)
            for registry in registries
            for subscriber in registry.subscribers
        ]
        try:
            yield replace(
                host,
                tools=(*host.tools, *(tool for registry in registries for tool in registry.tools)),
                plugins=registries,
                sinks=(*host.sinks, *map(BorrowedSink, subscriptions)),
                report=report,
            )
        finally:
            # Closed here and not by a run, because a subscriber gets the events of all runs of the block.
            for subscription in subscriptions:
                subscription.close()


def get_plugin_part[T](
    name: str, offers: Iterable[Mapping[str, T]], *, kind: str, failure: type[UsageError | StoreUnavailable]
) -> T:
    """Return the part that a running plugin provides as `plugin/<name>`. Raises `failure` if there is none."""
    brought = {f"{PLUGIN}{key}": value for offer in offers for key, value in offer.items()}
    if name not in brought:
        known = ", ".join(f"`{each}`" for each in sorted(brought)) or "none"
        raise failure(
            f"No plugin that runs brings a {kind} {name.removeprefix(PLUGIN)!r}",
            hint=f"{kind.capitalize()}s of plugins here: {known}; "
            "`agent plugins list` says which plugins are off, and why",
        )
    return brought[name]


def render_layers(host: Host) -> str:
    """Render the prompt layers of plugins. A plugin that fails or hangs is reported and adds nothing."""
    seconds = host.settings.plugins.timeout_seconds
    pieces: list[str] = []
    for registry in host.plugins:
        for layer in registry.prompt_layers:
            text = ask_for_layer(registry, layer, seconds=seconds, report=host.report)
            pieces += [f"# {layer.title}\n\n{text}"] if text else []
    return "\n\n".join(pieces)
