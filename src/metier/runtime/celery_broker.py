"""The broker as Celery sees it: its settings, its messages, its errors. Imported only where a broker is configured."""

from collections.abc import Iterable
from typing import Any

from amqp.exceptions import NotFound
from celery import Celery
from kombu.exceptions import OperationalError

from metier.runtime.broker import Address, build_unavailable

DRIVE = "metier.drive"
TIME_OUT = "metier.time_out"

VISIBILITY_SECONDS = 30
"""On Redis, how long a message that a worker took is kept from others. Those of a dead worker come back after it;
those of a living one that takes longer come twice, find the run taken, and are dropped."""

_SEND_SECONDS = 5
_RETRY = {"max_retries": 2, "interval_start": 0.1, "interval_step": 0.5}


def build_app(address: Address) -> Any:  # noqa: ANN401 - Celery has no types
    """The Celery application, without tasks."""
    app: Any = Celery("metier", broker=address.url, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_timeout=_SEND_SECONDS,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_heartbeat=10,
        broker_transport_options=_REDIS_OPTIONS if address.is_redis else {},
    )
    return app


_REDIS_OPTIONS = {
    "visibility_timeout": VISIBILITY_SECONDS,
    # Without these two a scan for messages of dead workers comes every hundred seconds or so.
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    "socket_connect_timeout": _SEND_SECONDS,
}


class CeleryBroker:
    """`runtime.broker.Broker`."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._app = build_app(address)

    @property
    def address(self) -> Address:
        return self._address

    def wake(self, run_ids: Iterable[str], *, queue: str) -> None:
        try:
            for run_id in run_ids:
                self._app.send_task(DRIVE, args=[run_id], queue=queue, retry=True, retry_policy=_RETRY)
        except (OperationalError, OSError) as error:
            raise build_unavailable(self._address) from error

    def count_waiting(self, queue: str) -> int:
        with self._app.connection_for_write() as connection:
            lost = (OperationalError, OSError, *connection.connection_errors, *connection.channel_errors)
            try:
                connection.ensure_connection(max_retries=1, timeout=_SEND_SECONDS)
                return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
            except lost as error:
                # On Redis a queue that is empty is not there.
                if str(getattr(error, "reply_code", "")) == str(NotFound.code):
                    return 0
                raise build_unavailable(self._address) from error

    def close(self) -> None:
        self._app.close()
