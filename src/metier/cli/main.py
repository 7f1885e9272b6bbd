"""The entry point of `agent`: prepares the process, and turns errors into messages and exit codes."""

import gc
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from metier.version import __version__

_SET_DUMPABLE = 4
"""`PR_SET_DUMPABLE` of prctl(2)."""


def main() -> None:
    # Before anything else: even the first error needs a stream that can be written to.
    _prepare_streams()
    # Keeps Python programs that are started from here from importing modules of their current folder.
    os.environ["PYTHONSAFEPATH"] = "1"
    if os.environ.get("PYTHONPATH") or "" in sys.path:
        _ignore_workspace_imports()
    # `--version` reads no keys, so it skips the import of ctypes.
    if sys.argv[1:] != ["--version"]:
        _deny_process_inspection()
    exit_code = _flush(run(sys.argv[1:]))
    # The interpreter collects garbage once more when it exits. Skipping that saves 15 % of a short run's CPU time.
    gc.freeze()
    sys.exit(exit_code)


def _deny_process_inspection() -> None:
    """Stop other processes of this user from reading its environment or memory, tracing it, or dumping its core.

    This process holds API keys. Programs that tools start get no keys in their environment, but they run as the same
    user, so they could read the keys from `/proc/<agent>/environ`. Linux only; child processes don't inherit it.
    """
    if sys.platform != "linux":
        return
    import ctypes

    try:
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    except (OSError, AttributeError):
        # This C library lacks prctl. The sandbox and the filtered environment still protect the keys.
        return


def _ignore_workspace_imports() -> None:
    from metier.programs.import_paths import ignore_workspace_imports

    for entry in ignore_workspace_imports(os.curdir):
        sys.stderr.write(
            f"warning: {entry!r} in PYTHONPATH is ignored because runs can write there\n"
            "hint: Run `unset PYTHONPATH` first\n"
        )


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    # Words after `--` belong to another program, such as a skill's script.
    own = args[: args.index("--")] if "--" in args else args
    debug = "--debug" in own
    try:
        if list(args) == ["--version"]:
            sys.stdout.write(f"agent {__version__}\n")
            return 0
        # Imported late: `agent --version` does without Typer.
        from metier.cli.root import invoke

        return invoke([*(arg for arg in own if arg != "--debug"), *args[len(own) :]])
    except KeyboardInterrupt:
        # 128 + SIGINT, as a shell reports it.
        return 130
    except BrokenPipeError:
        # The reader of our output exited. Without a stream, the interpreter reports no error when it flushes.
        sys.stdout = None
        # 128 + SIGPIPE.
        return 141
    # The outermost entry point: every error becomes a message and an exit code.
    except Exception as error:
        from metier.cli.help import find_command
        from metier.cli.shared.failure import report

        return report(error, debug=debug, command=find_command(own))


def _prepare_streams() -> None:
    """Replace closed streams, and escape characters that a stream cannot encode."""
    # A caller that closed them reads no output; the command must still work.
    if sys.stdout is None:  # for example, after `>&-` in a shell
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - stays open until the process exits
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        # Text such as a file name must not fail the command if the terminal cannot encode it.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flush(exit_code: int) -> int:
    """Flush both streams and return the exit code, which reports output that could not be written.

    A stream that cannot be flushed is dropped: the interpreter would try again at its exit and replace the code by 120.
    """
    if sys.stdout is not None:  # `run` drops it if the reader exited
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            sys.stdout = None
            exit_code = 141
        # For example, stdout is a file on a full disk.
        except OSError as error:
            from metier.cli.shared.failure import report

            sys.stdout = None
            exit_code = exit_code or report(error, debug=False)
    try:
        sys.stderr.flush()
    except OSError:
        sys.stderr = None
    return exit_code
