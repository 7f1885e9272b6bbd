"""The command `agent`: the fast way out for `--version`, and the one place where errors become words and exit codes."""

import gc
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from metier.version import __version__


def main() -> None:
    collect_less_often()
    _prepare_streams()
    if sys.argv[1:] != ["--version"]:
        from metier.cli.shared.secrecy import close_to_others

        close_to_others()
    sys.exit(_flush(run(sys.argv[1:])))


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    # What stands after `--` is not ours to read, for instance the arguments of a script.
    own = args[: args.index("--")] if "--" in args else args
    debug = "--debug" in own
    try:
        if list(args) == ["--version"]:
            sys.stdout.write(f"agent {__version__}\n")
            return 0
        from metier.cli.root import invoke

        return invoke([*(arg for arg in own if arg != "--debug"), *args[len(own) :]])
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output left; the interpreter must not complain about it while flushing.
        sys.stdout = None
        return 141
    except Exception as error:
        from metier.cli.shared.failure import report

        return report(error, debug=debug)


def collect_less_often() -> None:
    """Look for cycles after 20,000 new objects instead of 700.

    A start imports, and a run or a page builds, tens of thousands of objects that stay: looking at them again and again
    took a third of the time of a long page and a twentieth of a start.
    """
    gc.set_threshold(20_000, 10, 10)


def _prepare_streams() -> None:
    """Make the streams such that no text and no caller can break them."""
    # A caller may have closed them; then no output is read, and that is no reason to stop.
    if sys.stdout is None:  # so it is after `>&-`
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - open as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal has no letters for is spelled out instead of ending the command.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flush(exit_code: int) -> int:
    """Flush now: a failure at the exit of the interpreter would not reach the exit code."""
    if sys.stdout is None:  # `run` took it away
        return exit_code
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None
        return 141
    except OSError as error:
        from metier.cli.shared.failure import report

        sys.stdout = None
        return report(error, debug=False)
    return exit_code
