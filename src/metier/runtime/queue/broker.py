"""Wake-ups through a message broker. A message only names a run that can continue.

Lost and duplicate messages are harmless: leases decide which worker drives a run, and workers also check the store for
runs that no message names. Celery is imported only if a broker is configured.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from metier.errors import BrokerUnavailable, UsageError
from metier.settings.sections import WorkerOptions
from metier.settings.setting_values import mask

OWN_VARIABLE = "AGENT_WORKER_BROKER_URL"

_REDIS = frozenset({"redis", "rediss", "redis+socket", "sentinel"})
_AMQP = frozenset({"amqp", "amqps", "pyamqp"})
# Celery's SQL and file transports lose a message that a killed worker had taken.
_LOSING = frozenset({"sqla", "sqlalchemy", "filesystem"})


# A dataclass, because `repr=False` keeps the password in the URL out of logs and tracebacks.
@dataclass(frozen=True, slots=True)
class Address:
    url: str = field(repr=False)

    @property
    def shown(self) -> str:
        """Return the address without its password."""
        return mask(self.url)

    @property
    def is_redis(self) -> bool:
        return urlsplit(self.url).scheme in _REDIS


class Broker(Protocol):
    """Delivers wake-ups. Every method raises `BrokerUnavailable`."""

    @property
    def address(self) -> Address: ...

    def wake(self, run_ids: Iterable[str], *, queue: str) -> None:
        """Ask a worker of the queue to continue with each of these runs."""
        ...

    def count_waiting(self, queue: str) -> int:
        """Count the messages of a queue that no worker has taken yet."""
        ...

    def close(self) -> None: ...


def find_address(options: WorkerOptions, environ: Mapping[str, str]) -> Address | None:
    """Return the configured broker, if any. Raises `UsageError` for an invalid one."""
    for variable in (OWN_VARIABLE, options.broker_url_env):
        url = environ.get(variable, "").strip()
        if url:
            return _check(Address(url), variable)
    return None


def name_recovery(queue: str) -> str:
    """Return the queue for runs whose worker died, so that they don't wait behind newer runs."""
    return f"{queue}.recover"


def build_unavailable(address: Address) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"The broker '{address.shown}' does not answer",
        hint="Start it, or correct its address; the run is in the store, and workers find it there",
    )


def _check(address: Address, variable: str) -> Address:
    scheme = urlsplit(address.url).scheme
    if scheme.partition("+")[0] in _LOSING:
        raise UsageError(
            f"The broker of {variable} loses messages when a worker is killed: {scheme!r}",
            hint="Use Redis or RabbitMQ, or no broker at all: then workers look into the run store",
        )
    if scheme not in _REDIS | _AMQP:
        raise UsageError(
            f"What {variable} says is not the address of a broker",
            hint='Write it like "redis://:password@host:6379/0" or "amqp://user:password@host:5672//"',
        )
    return address
