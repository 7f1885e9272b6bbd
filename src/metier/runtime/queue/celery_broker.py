"""The broker through Celery: settings, messages, errors. Imported only if a broker is configured."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

from amqp.exceptions import AMQPError, MessageNacked, NotFound
from celery import Celery
from kombu.exceptions import KombuError

from metier.runtime.queue.broker import Address, build_unavailable

DRIVE = "metier.drive"
TIME_OUT = "metier.time_out"

VISIBILITY_SECONDS = 30
"""Time for which Redis hides a taken message from other workers. Then the message of a dead worker is delivered again.
That of a slow worker is too, but its run has a driver, so the duplicate is dropped.
"""

_SEND_SECONDS = 5
# Few attempts, because workers also find the run in the store.
_RETRY = {"max_retries": 2, "interval_start": 0.1, "interval_step": 0.5}


def build_app(address: Address) -> Any:  # noqa: ANN401 - Celery has no types
    """Build the Celery application, without tasks."""
    # Not as the current app of the process: a program that uses the Python API may have its own.
    app: Any = Celery("metier", broker=address.url, set_as_current=False)
    app.conf.update(
        # Never pickle: anyone who can write to the broker could run code in the workers.
        accept_content=["json"],
        task_serializer="json",
        # The outcome of a run is in the store.
        task_ignore_result=True,
        # Acknowledge after the work, so that the message of a killed worker is delivered again.
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        # A prefetched message would wait behind a long run although other workers are idle.
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,  # reports of a worker are printed unchanged
        # The lease decides who drives a run, not the connection. A redelivered message is dropped.
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_timeout=_SEND_SECONDS,
        broker_connection_retry_on_startup=True,
        # Celery gives up after 100 attempts by default, but a worker must outlast an outage of its broker.
        broker_connection_max_retries=None,
        # RabbitMQ closes the channel of a task that is not acknowledged within half an hour. The run and the worker
        # continue; the message is delivered again and dropped, because the run has a driver.
        broker_channel_error_retry=True,
        broker_heartbeat=10,
        broker_transport_options=_REDIS_OPTIONS if address.is_redis else _AMQP_OPTIONS,
    )
    return app


_REDIS_OPTIONS = {
    "visibility_timeout": VISIBILITY_SECONDS,
    # Without these two, Redis restores messages of dead workers only about every hundred seconds.
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    "socket_connect_timeout": _SEND_SECONDS,
}
_AMQP_OPTIONS = {
    # Wait for the broker's confirmation, because a short command exits right after sending.
    "confirm_publish": True,
}


def send(app: Any, task: str, run_id: str, *, queue: str) -> None:  # noqa: ANN401 - Celery has no types
    """Send a message and return when the broker has it. Raises one of `list_failures` on a timeout."""
    app.send_task(task, args=[run_id], queue=queue, retry=True, retry_policy=_RETRY, confirm_timeout=_SEND_SECONDS)


def list_failures(app: Any) -> tuple[type[Exception], ...]:  # noqa: ANN401 - Celery has no types
    """List the errors that sending can raise. Those of Redis exist only if it is used."""
    connection: Any = app.connection_for_write()
    return (
        *(KombuError, AMQPError, MessageNacked, OSError),
        *connection.connection_errors,
        *connection.channel_errors,
    )


class CeleryBroker:
    """A `Broker` that uses Celery."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._app = build_app(address)

    def wake(self, run_ids: Iterable[str], *, queue: str) -> None:
        with self._translated():
            for run_id in run_ids:
                send(self._app, DRIVE, run_id, queue=queue)

    def count_waiting(self, queue: str) -> int:
        with self._translated(), self._app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=_SEND_SECONDS)
            try:
                return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
            except connection.channel_errors as error:
                # An empty queue doesn't exist on Redis, nor an unused one on RabbitMQ.
                if str(getattr(error, "reply_code", "")) == str(NotFound.code):
                    return 0
                raise

    def close(self) -> None:
        self._app.close()

    @contextmanager
    def _translated(self) -> Generator[None]:
        """Translate the errors of every transport into `BrokerUnavailable`."""
        try:
            yield
        except list_failures(self._app) as error:
            raise build_unavailable(self.address) from error
