"""The command `agent`: the fast way out for `--version`, and the one place where errors become words and exit codes."""

import gc
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from metier.version import __version__


def main() -> None:
    _prepare_streams()
    # For every Python that is started from here with this environment: none imports from its current folder.
    os.environ["PYTHONSAFEPATH"] = "1"
    if os.environ.get("PYTHONPATH") or "" in sys.path:
        _ignore_workspace_imports()
    if sys.argv[1:] != ["--version"]:
        from metier.cli.shared.secrecy import close_to_others

        close_to_others()
    exit_code = _flush(run(sys.argv[1:]))
    # The interpreter collects garbage once more when it exits. Skipping that saves 15 % of a short run's CPU time.
    gc.freeze()
    sys.exit(exit_code)


def _ignore_workspace_imports() -> None:
    from metier.programs.import_paths import ignore_workspace_imports

    for entry in ignore_workspace_imports(os.curdir):
        sys.stderr.write(
            f"warning: {entry!r} in PYTHONPATH is ignored because runs can write there\n"
            "hint: Run `unset PYTHONPATH` first\n"
        )


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

        return report(error, debug=debug, args=own)


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
    """Flush both streams and return the exit code, which reports output that could not be written.

    A stream that cannot be flushed is dropped: the interpreter would try again at its exit and replace the code by 120.
    """
    if sys.stdout is not None:  # `run` drops it when the reader has left
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            sys.stdout = None
            exit_code = 141
        except OSError as error:
            from metier.cli.shared.failure import report

            sys.stdout = None
            exit_code = exit_code or report(error, debug=False)
    try:
        sys.stderr.flush()
    except OSError:
        sys.stderr = None
    return exit_code
