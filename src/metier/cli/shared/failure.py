"""Turn an exception into `error: …` and `hint: …` lines on stderr and an exit code. Secrets are redacted."""

import contextlib
import errno
import importlib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import typer

from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem
from metier.errors import ConfigError, MetierError, UsageError
from metier.telemetry.environment_secrets import list_secret_values
from metier.telemetry.redaction import build_redactor
from metier.telemetry.sanitize import sanitize, sanitize_line


@runtime_checkable
class _BadCall(Protocol):
    """A usage error of Typer, which exports only its class `BadParameter`."""

    message: str
    __cause__: BaseException | None

    def format_message(self) -> str: ...


def report(error: Exception, *, debug: bool, command: str = "agent") -> int:
    """Print the error of a command, with `debug` also its traceback, and return the exit code."""
    lines, exit_code = describe(error, command)
    redact = build_redactor(values=list_secret_values(os.environ)).redact
    # Sanitized before redaction: a color code inside a secret would hide it from the redactor.
    # Line ends are escaped last, because some secrets are recognized by their line.
    shown = [sanitize_line(redact(sanitize(line))) for line in lines]
    if debug:
        shown = [redact(sanitize("".join(traceback.format_exception(error)).rstrip())), *shown]
    with contextlib.suppress(OSError):  # the terminal may be gone
        sys.stderr.write("".join(f"{line}\n" for line in shown))
    return exit_code


def describe(error: Exception, command: str = "agent") -> tuple[list[str], int]:
    """Return the lines to print, not yet sanitized, and the exit code."""
    if isinstance(error, _BadCall):
        return _describe_usage(error), 2
    match error:
        case typer.Exit():
            return [], error.exit_code
        # Prompts raise it for Ctrl-C; 128 + SIGINT is the code that shells use.
        case typer.Abort():
            return ["error: Aborted"], 130
        case ConfigError() if flags := _describe_flags(error, command):
            return flags, error.exit_code
        case UsageError() if error.message.startswith("--") and not error.hint:
            return [f"error: {error.message}", _hint_usage(command)], error.exit_code
        case MetierError():
            problems = [problem.render() for problem in error.problems] if isinstance(error, ConfigError) else []
            hint = [f"hint: {error.hint}"] if error.hint else []
            return [*problems, f"error: {error.message}", *hint], error.exit_code
        case OSError():
            return _describe_system(error), 1
        case _:
            name = type(error).__name__
            return [f"error: Unexpected {name}: {error}", "hint: Run it again with --debug and report the output"], 1


_FLAG = re.compile(r"The flag for (\S+) ")
_FLAG_NAMES = {"model.name": "--model", "skills.dir": "--skills-dir", "logging.debug_llm_bodies": "--debug-llm"}


def _describe_flags(error: ConfigError, command: str) -> list[str]:
    """Describe invalid flags like Typer's own usage errors. Returns nothing if a setting elsewhere is invalid too."""
    lines: list[str] = []
    for problem in error.problems:
        if not isinstance(problem, Problem) or not _FLAG.match(problem.message):
            return []
        lines.append(f"error: {_FLAG.sub(_name_flag, problem.message)}")
        lines.append(f"hint: {problem.hint}" if problem.hint else _hint_usage(command))
    return lines


def _hint_usage(command: str) -> str:
    return f"hint: Run `{command} --help` for usage"


def _name_flag(match: re.Match[str]) -> str:
    key = match[1]
    return f"{_FLAG_NAMES.get(key, '--' + key.rpartition('.')[2].replace('_', '-'))} "


def _describe_usage(error: _BadCall) -> list[str]:
    """Return Typer's message, with a suggestion for a misspelled word as the hint."""
    # By name, because Typer does not export the class.
    if type(error).__name__ == "NoArgsIsHelpError":
        return error.format_message().splitlines()
    # Typer lists the choices of a missing argument on separate lines.
    listed = re.sub(r"\s*\n\s*", " ", error.format_message())
    message = listed.rstrip(".").replace("Value error, ", "").replace("Choose from: ", "Choose from ")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "agent"
    word, known = _get_wrong_word(error)
    if word:
        # Typer adds suggestions too, in a different format for each kind of error.
        message = re.split(r"\. Did you mean | \(Possible options", message)[0]
    message = re.sub(r"Invalid value for '([^']*)': '([^']*)' is not one of (.*)", _name_choices, message)
    message = re.sub(r"Invalid value for '([^']*)': Input should be .*", partial(_name_range, error), message)
    message = re.sub(r"Got unexpected extra argument\(s\) \((.*)\)", r"Unexpected argument '\1'", message)
    return [f"error: {message}", _hint_usage_error(word, known, path, is_command=message.startswith("No such command"))]


def _hint_usage_error(word: str, known: Sequence[str], path: str, *, is_command: bool) -> str:
    if word == "--server":
        return "hint: Put it before the command: `agent --server URL …`"
    if nearest := hint_nearest(word, known) if word else "":
        return f"hint: {nearest}"
    return f"hint: Run `{path} --help` to list the commands" if is_command else _hint_usage(path)


def _name_range(error: _BadCall, match: re.Match[str]) -> str:
    """Word a number that pydantic rejected like a rejected setting."""
    # Imported late: other errors, such as a wrong command, are reported without loading pydantic.
    phrases: dict[str, str] = importlib.import_module("metier.definitions.reader").PHRASES
    details = cast("Any", error.__cause__).errors()[0]  # only pydantic's errors have this wording
    phrase = phrases.get(str(details["type"])) or str(details["msg"])
    return f"{match[1]} {phrase.format(**details.get('ctx', {}))}, not {str(details['input'])!r}"


def _name_choices(match: re.Match[str]) -> str:
    """Word a rejected choice like a rejected setting."""
    option, given, choices = match.groups()
    first, _, last = choices.rpartition(", ")
    return f"{option} must be {f'{first} or {last}' if first else last}, not '{given}'"


def _get_wrong_word(error: _BadCall) -> tuple[str, list[str]]:
    """Return the invalid word and the valid ones: commands, options or values of an option."""
    context = getattr(error, "ctx", None)
    if context is None:
        return "", []
    if type(error).__name__ == "NoSuchOption":
        return cast("str", getattr(error, "option_name", "")), [
            name for each in context.command.params for name in each.opts
        ]
    if isinstance(error, typer.BadParameter):
        refused = re.search(r"'([^']*)' is not one of (.*)", error.message)
        return (refused[1], re.findall(r"'([^']*)'", refused[2])) if refused else ("", [])
    quoted = re.search(r"No such command '([^']*)'", error.message)
    return (quoted[1], list(getattr(context.command, "commands", {}))) if quoted else ("", [])


def _describe_system(error: OSError) -> list[str]:
    """Describe a failure of a disk, folder or stream, which is not a bug in Metier."""
    try:
        # Checked first: in a deleted directory every relative path fails, and the error names that path.
        Path.cwd()
    except FileNotFoundError:
        return ["error: The current directory no longer exists", "hint: Change to another directory"]
    place = f": {str(error.filename)!r}" if error.filename else ""
    hint = "Check its permissions" if _is_denied(error) else "Run it again with --debug for details"
    return [f"error: {error.strerror or error}{place}", f"hint: {hint}"]


def _is_denied(error: OSError) -> bool:
    return bool(error.filename) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
