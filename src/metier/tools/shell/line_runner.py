"""Runs a parsed line word by word, without a shell. A separate program, started by `shells`.

Its only argument is JSON: `[[connector, [[argv, redirects], …]], …]`. Names of variables are between two marks, as in
`line`. Its exit code is that of the last pipeline. Standard library only, because it is passed to an interpreter as
text.
"""

import json
import os
import re
import signal
import sys

NOT_FOUND, NOT_RUN, FAILED = 127, 126, 1
VARIABLE = re.compile("\ue010([A-Z]+)\ue011")


def main(text: str) -> int:
    """Run the pipelines in order, as their connectors demand."""
    status = 0
    for connector, commands in json.loads(text):
        if (connector == "&&" and status != 0) or (connector == "||" and status == 0):
            continue
        is_cd = len(commands) == 1 and commands[0][0][0] == "cd"
        status = change_folder(commands[0][0]) if is_cd else run_pipeline(commands)
    return status


def change_folder(argv: list[str]) -> int:
    folder = fill(argv[1])
    try:
        os.chdir(folder)
    except OSError as error:
        say(f"cd: {folder}: {error.strerror}")
        return FAILED
    os.environ["PWD"] = os.getcwd()  # noqa: PTH109  pathlib would cost more than the rest
    return 0


def run_pipeline(commands: list[tuple[list[str], list[str]]]) -> int:
    """Run commands in parallel, connected by pipes. Returns the exit code of the last one."""
    children: list[int] = []
    source = -1
    for number, (argv, redirects) in enumerate(commands):
        is_last = number == len(commands) - 1
        following, sink = (-1, -1) if is_last else os.pipe()
        child = os.fork()
        if child == 0:
            become(argv, redirects, source=source, sink=sink)
        children.append(child)
        # A reader sees the end of its pipe only when all copies of the writing end are closed, including ours.
        for descriptor in (source, sink):
            if descriptor >= 0:
                os.close(descriptor)
        source = following
    # All of them, as a shell does: the first program of a pipe may still write when the last has ended.
    endings = [os.waitpid(child, 0)[1] for child in children]
    code = os.waitstatus_to_exitcode(endings[-1])
    # As shells report a signal.
    return code if code >= 0 else 128 - code


def fill(word: str) -> str:
    """Replace variables with their current values."""
    return VARIABLE.sub(lambda found: os.environ.get(found[1], ""), word)


def become(argv: list[str], redirects: list[str], *, source: int, sink: int) -> None:
    argv = [fill(word) for word in argv]
    try:
        for descriptor, place in ((source, 0), (sink, 1)):
            if descriptor >= 0:
                os.dup2(descriptor, place)
        for redirect in redirects:
            apply_redirect(redirect)
        # Python ignores these signals, and the program would inherit that.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(argv[0], argv)  # noqa: S606  an argument list, and there is no shell
    except FileNotFoundError as error:
        # The missing file is the input of a redirect, not the program.
        if error.filename not in (None, argv[0]):
            say(f"{error.filename}: {error.strerror}")
            os._exit(FAILED)
        say(f"{argv[0]}: command not found")
        os._exit(NOT_FOUND)
    except OSError as error:
        say(f"{argv[0]}: {error.strerror}")
    os._exit(NOT_RUN)


def apply_redirect(redirect: str) -> None:
    if redirect.startswith("<"):
        os.dup2(os.open(fill(redirect[1:]), os.O_RDONLY), 0)
        return
    left, _, right = redirect.partition(">")
    targets = {"": (1,), "&": (1, 2)}.get(left) or (int(left),)
    source = os.open(os.devnull, os.O_WRONLY) if right == os.devnull else int(right[1:])
    for target in targets:
        os.dup2(source, target)


def say(text: str) -> None:
    os.write(2, f"{text}\n".encode("utf-8", "surrogateescape"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
