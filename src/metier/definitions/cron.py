"""Cron expressions. The only file that knows the library, which the extra `schedules` brings."""

from collections.abc import Iterator
from datetime import datetime
from importlib.util import find_spec

from metier.errors import ConfigError
from metier.extras import hint_extra


def follow_cron(expression: str, after: datetime) -> Iterator[datetime]:
    """The due times after a moment, in the time zone of that moment.

    Raises `ValueError` for what is no cron expression, `ConfigError` where the library is not installed.
    """
    if find_spec("cronsim") is None:
        raise ConfigError(
            "Cron expressions need the package 'cronsim', which is not installed", hint=hint_extra("schedules")
        )
    from cronsim import CronSim, CronSimError

    try:
        return CronSim(expression, after)
    except CronSimError as error:
        raise ValueError(str(error)) from error
