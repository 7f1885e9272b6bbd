"""Turn an exception into `error: … / hint: …` on stderr and an exit code. Nothing secret gets through."""

import contextlib
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

import typer

from metier.definitions.nearest import hint_nearest
from metier.errors import ConfigError, MetierError
from metier.telemetry.environment_secrets import find_secret_values
from metier.telemetry.redaction import build_redactor
from metier.telemetry.sanitize import sanitize, sanitize_line


@runtime_checkable
class _BadCall(Protocol):
    """What Typer raises for a command line that it cannot read; of its classes it exports `BadParameter` alone."""

    message: str

    def format_message(self) -> str: ...


def report(error: Exception, *, debug: bool) -> int:
    """Say what happened and return the exit code; with `debug`, the traceback too."""
    lines, exit_code = describe(error)
    redact = build_redactor(values=find_secret_values(os.environ)).redact
    # Line ends become visible last: some secrets are known by the line they stand on.
    shown = [sanitize_line(redact(sanitize(line))) for line in lines]
    if debug:
        shown = [redact(sanitize("".join(traceback.format_exception(error)).rstrip())), *shown]
    with contextlib.suppress(OSError):  # the terminal may be gone
        sys.stderr.write("".join(f"{line}\n" for line in shown))
    return exit_code


def describe(error: Exception) -> tuple[list[str], int]:
    """One line per fact, and the exit code. What a fact quotes is not yet made safe to show."""
    if isinstance(error, _BadCall):
        return _describe_usage(error), 2
    match error:
        case typer.Exit():
            return [], error.exit_code
        case typer.Abort():
            return ["error: Stopped before the end"], 130
        case MetierError():
            problems = [problem.render() for problem in error.problems] if isinstance(error, ConfigError) else []
            hint = [f"hint: {error.hint}"] if error.hint else []
            return [*problems, f"error: {error.message}", *hint], error.exit_code
        case OSError():
            return _describe_system(error), 1
        case _:
            name = type(error).__name__
            return [f"error: Unexpected {name}: {error}", "hint: Run it again with --debug and report what it shows"], 1


def _describe_usage(error: _BadCall) -> list[str]:
    """The sentence of the library, and as the hint the word that was probably meant."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return error.format_message().splitlines()
    # The library lists the choices of a missing argument on lines of their own.
    listed = re.sub(r"\s*\n\s*", " ", error.format_message())
    message = listed.rstrip(".").replace("Value error, ", "").replace("Choose from: ", "Choose from ")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "agent"
    word, known = _find_wrong_word(error)
    if word:
        # The library guesses too, in other words for each kind; one way is enough.
        message = re.split(r"\. Did you mean | \(Possible options", message)[0]
    nearest = hint_nearest(word, known) if word else ""
    return [f"error: {message}", f"hint: {nearest or f'`{path} --help` shows how it is called'}"]


def _find_wrong_word(error: _BadCall) -> tuple[str, list[str]]:
    """What was typed, and what there is instead: commands, options, or the values of an option."""
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
    """A disk, a folder or a stream that does not do what it should is the machine's fact, not a bug."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return ["error: The current directory no longer exists", "hint: Change to another one"]
    place = f": {str(error.filename)!r}" if error.filename else ""
    return [f"error: {error.strerror or error}{place}", "hint: Add --debug to see where it came from"]
