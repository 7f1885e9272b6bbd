"""Opening the configured broker. Loads Celery only if there is one."""

import importlib.util
from collections.abc import Mapping

from metier.errors import UsageError
from metier.extras import hint_extra
from metier.runtime.queue.broker import Broker, find_address
from metier.settings.sections import WorkerOptions


def find_broker(options: WorkerOptions, environ: Mapping[str, str]) -> Broker | None:
    """Return the configured broker; None if workers poll the store. Raises `UsageError`."""
    address = find_address(options, environ)
    if address is None:
        return None
    if importlib.util.find_spec("celery") is None:
        raise UsageError("A broker is configured, and Celery is not installed", hint=hint_extra("worker"))
    # Loaded only where it is used: it takes twice as long as the rest of a short command.
    from metier.runtime.queue.celery_broker import CeleryBroker

    return CeleryBroker(address)
