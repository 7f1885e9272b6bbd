"""The command `agent`: the fast way out for `--version`, and the one place where errors become words and exit codes."""

import sys
from collections.abc import Sequence
from io import TextIOWrapper

from metier import __version__


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal has no letters for is spelled out instead of ending the command.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    if list(args) == ["--version"]:
        sys.stdout.write(f"agent {__version__}\n")
        return 0
    debug = "--debug" in args
    try:
        from metier.cli.root import invoke

        return invoke([arg for arg in args if arg != "--debug"])
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output left; the interpreter must not complain about it while flushing.
        sys.stdout = None
        return 141
    except Exception as error:
        from metier.cli.failure import report

        return report(error, debug=debug)
