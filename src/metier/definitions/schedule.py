"""Schedules and their due times, from `.agent/schedules.yaml` or `agent schedule add`.

schedules:
  nightly-report:
    cron: "30 6 * * mon-fri"
    timezone: Europe/Berlin
    prompt: Summarize what changed since yesterday.
"""

import hashlib
import re
from collections.abc import Iterator
from collections.abc import Mapping as MappingOf
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from metier.definitions.files.contained_path import read_contained
from metier.definitions.problems import Problem
from metier.definitions.reader import (
    BAD_VALUE,
    Entries,
    FileModel,
    ModelReading,
    Raw,
    Text,
    Word,
    read_model,
    read_values,
)
from metier.definitions.text.yaml_text import Entry, Mapping, Node, read_yaml
from metier.errors import ConfigError
from metier.extras import hint_extra

FILE_NAME = "schedules.yaml"
ROOT_KEY = "schedules"
MAX_BYTES = 64 * 1024
_DURATION = re.compile(r"(\d{1,7})\s*(s|m|h|d)", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SHORTCUTS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_ANY_DAY = datetime(2024, 1, 1, tzinfo=UTC)
MAX_DUE = 200
"""Maximum number of missed due times to record; older ones are skipped."""


def follow_cron(expression: str, after: datetime) -> Iterator[datetime]:
    """Iterate over the due times after a time, in its time zone.

    Raises `ValueError` for an invalid cron expression, `ConfigError` if the library is not installed.
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


def parse_seconds(text: object) -> object:
    """Convert `90s`, `15m`, `2h` and `1d` to seconds. pydantic checks values that are not text."""
    if not isinstance(text, str):
        return text
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is not a duration; write 90s, 15m, 2h or 1d")
    return int(found[1]) * _SECONDS[found[2]]


Seconds = Word[Annotated[int, BeforeValidator(parse_seconds)]]


class ScheduleFields(FileModel):
    """Fields of one schedule."""

    cron: Text = ""
    """Five fields, six fields starting with seconds, or a word such as `@daily`."""
    every: Annotated[Seconds, Field(ge=0, le=366 * 86400)] = 0
    """Alternative to `cron`: the interval in seconds, starting when the schedule was first seen."""
    timezone: Text = "UTC"
    prompt: Text = ""
    task: Text = ""
    """Alternative to `prompt`: the ID of a task definition."""
    inputs: Entries[Text] = Field(default_factory=dict[str, str])
    agent: Text = ""
    profile: Word[Literal["", "permissive", "guarded", "strict"]] = ""
    overlap: Word[Literal["skip", "queue", "cancel"]] = "skip"
    """Behavior at a due time while an earlier run is still active."""
    missed: Word[Literal["skip", "once"]] = "skip"
    """Behavior for due times at which no process was running: skip them, or run once for all of them."""
    jitter: Annotated[Seconds, Field(ge=0, le=86400)] = 0
    """Maximum random delay in seconds, the same in every process."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.cron) == bool(self.every):
            raise ValueError("A schedule needs either 'cron' or 'every'")
        if bool(self.prompt.strip()) == bool(self.task):
            raise ValueError("A schedule needs either 'prompt' or 'task'")
        if self.inputs and not self.task:
            raise ValueError("'inputs' are for a 'task'")
        if self.task and self.profile == "permissive":
            raise ValueError("A task is never less than guarded")
        try:
            zone = ZoneInfo(self.timezone)
        except (KeyError, OSError, ValueError) as error:
            raise ValueError(f"No time zone is called {self.timezone!r}") from error
        if self.cron:
            try:
                # Only computing a time shows that a valid expression is never due, such as `0 0 30 2 *`.
                next(follow_cron(self.cron_fields, _ANY_DAY.astimezone(zone)))
            except (ValueError, StopIteration) as error:
                raise ValueError(f"{self.cron!r} is not a cron expression: {error or 'it is never due'}") from error
        return self

    @property
    def cron_fields(self) -> str:
        return _SHORTCUTS.get(self.cron.strip().lower(), self.cron)

    @property
    def timing(self) -> str:
        """Identifier of the due times. After a change, earlier due times no longer count."""
        return f"every {self.every} s" if self.every else f"{self.cron_fields} {self.timezone}"


class ScheduleDefinition(ScheduleFields):
    """A schedule: its due times, its work, and how missed due times are handled."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]


class _File(FileModel):
    shape_hint = f"Start with '{ROOT_KEY}:'"

    schedules: Entries[Raw] = Field(default_factory=dict[str, Node])


class ScheduleFile(Struct, frozen=True, kw_only=True):
    """Content of a workspace's schedule file."""

    schedules: tuple[ScheduleDefinition, ...] = ()
    problems: tuple[Problem, ...] = ()
    content: bytes = b""
    file: str = ""
    lines: MappingOf[str, int] = field(default_factory=dict[str, int])
    """First line of each schedule, by name."""


_CRON_HINT = "Write minute, hour, day of month, month and day of week: '0 3 * * *' is every day at 03:00"


def build_schedule(values: MappingOf[str, object]) -> ScheduleDefinition:
    """Build a schedule. Raises `ConfigError` with all problems."""
    try:
        return ScheduleDefinition.model_validate(dict(values))
    except ValidationError as error:
        sentences = [_describe(each["loc"], each["msg"]) for each in error.errors()]
        hint = _CRON_HINT if any("cron expression" in sentence for sentence in sentences) else ""
        raise ConfigError(f"The schedule cannot be used: {'; '.join(sentences)}", hint=hint) from error


def load_schedules(workspace: Path, folders: tuple[str, ...]) -> ScheduleFile:
    """Load the first existing schedule file. Return an empty one if there is none."""
    for folder in folders:
        file = workspace / folder / FILE_NAME
        try:
            data = read_contained(file, within=workspace, limit=MAX_BYTES)
        except FileNotFoundError:
            continue
        except OSError as error:
            problem = _problem(f"It cannot be read: {error.strerror}", file=str(file))
            return ScheduleFile(problems=(problem,), file=str(file))
        return parse_schedules(data, file=str(file))
    return ScheduleFile()


def parse_schedules(data: bytes, *, file: str) -> ScheduleFile:
    """Parse the valid schedules, and report every problem of the others."""
    document = read_yaml(data.decode("utf-8", "replace"), file=file)
    root = document.root
    if root is None:
        return ScheduleFile(problems=document.problems, content=data, file=file)
    reading = read_model(_File, root, file=file)
    problems = [*document.problems, *reading.problems]
    schedules: list[ScheduleDefinition] = []
    found = root.find(ROOT_KEY) if isinstance(root, Mapping) else None
    entries = found.value.entries if found is not None and isinstance(found.value, Mapping) else ()
    for entry in entries:
        schedule = _read_schedule(entry, file=file)
        schedules += [schedule.value] if schedule.value is not None else []
        problems += schedule.problems
    lines = {entry.key: entry.line for entry in entries}
    return ScheduleFile(schedules=tuple(schedules), problems=tuple(problems), content=data, file=file, lines=lines)


def _read_schedule(entry: Entry, *, file: str) -> ModelReading[ScheduleDefinition]:
    fields = replace(entry.value, line=entry.line)
    reading = read_model(ScheduleFields, fields, file=file, subject=f"Schedule {entry.key!r}")
    if reading.value is None:
        return ModelReading(None, tuple(_name_schedule(entry, problem) for problem in reading.problems))
    named = read_values(ScheduleDefinition, {**dict(reading.value), "name": entry.key}, fields, file=file)
    return ModelReading(named.value, (*reading.problems, *(_name_schedule(entry, each) for each in named.problems)))


def _name_schedule(entry: Entry, problem: Problem) -> Problem:
    """Prepend the schedule's name to the message about an invalid value."""
    if problem.code != BAD_VALUE:
        return problem
    message = f"Schedule {entry.key!r}: {problem.message}"
    return replace(problem, code="schedule_invalid", message=message)


def _problem(message: str, *, file: str, line: int | None = None) -> Problem:
    return Problem(severity="error", code="schedule_invalid", message=message, file=file, line=line)


def _describe(place: tuple[int | str, ...], message: str) -> str:
    """Return pydantic's message without its prefix."""
    text = message.removeprefix("Value error, ")
    return f"{place[0]}: {text}" if place else text


# Pure: the time is passed in, and every process gets the same result. Daylight saving follows Debian's cron: a fixed
# time in the skipped hour is due right after the gap, one in the repeated hour is due once; `*` in minutes or hours
# follows elapsed time.
def iterate_times(schedule: ScheduleDefinition, *, after: datetime, anchor: datetime) -> Iterator[datetime]:
    """Iterate without end over due times in UTC, in ascending order. `anchor` is the start of intervals."""
    if schedule.every:
        step = timedelta(seconds=schedule.every)
        number = max(0, (after - anchor) // step)
        while True:
            number += 1
            # Counted from the anchor, so that every process gets the same times.
            yield anchor + number * step
    previous = after
    # cronsim returns the first occurrence of a repeated hour, which may be before the start.
    for local in follow_cron(schedule.cron_fields, after.astimezone(ZoneInfo(schedule.timezone))):
        due = local.astimezone(UTC)
        if due > previous:
            previous = due
            yield due


def list_due(schedule: ScheduleDefinition, *, after: datetime, now: datetime, anchor: datetime) -> list[datetime]:
    """Return the due times after `after` that have passed, including jitter: at most `MAX_DUE`, the latest ones."""
    begin = after
    while True:
        found: list[datetime] = []
        for due in islice(iterate_times(schedule, after=begin, anchor=anchor), MAX_DUE + 1):
            if due + get_jitter(schedule, due) > now:
                return found
            found.append(due)
        # After a long absence, skip half of the remaining time instead of iterating over all due times.
        begin += (now - begin) / 2


def list_next(schedule: ScheduleDefinition, *, after: datetime, anchor: datetime, count: int) -> list[datetime]:
    """Return the next due times, without jitter."""
    return list(islice(iterate_times(schedule, after=after, anchor=anchor), count))


def get_jitter(schedule: ScheduleDefinition, due: datetime) -> timedelta:
    """Return the delay of a due time. It is derived from name and time, so it is the same in every process."""
    if not schedule.jitter:
        return timedelta()
    seed = hashlib.sha256(f"{schedule.name} {due.astimezone(UTC).isoformat()}".encode()).digest()
    return timedelta(seconds=schedule.jitter * int.from_bytes(seed[:8]) / 2**64)
