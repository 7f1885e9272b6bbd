"""A line as it is run: patterns replaced by the files they stand for, names handed on whole. Looks at the disk."""

import os
from dataclasses import replace

from metier.tools.shell.allowlist import CD, is_own_cd
from metier.tools.shell.line import Pipeline, ShellLine, SimpleCommand
from metier.tools.shell.words import expand_pattern, has_pattern
from metier.tools.shell.xargs import pair_commands


def expand_line(line: ShellLine, folder: str) -> ShellLine:
    """`folder` is where it begins; behind a `cd` patterns mean the folder that it leads to."""
    pipelines: list[Pipeline] = []
    for pipeline in line.pipelines:
        commands = tuple(_expand(command, folder) for command in pipeline.commands)
        pipelines.append(replace(pipeline, commands=pair_commands(commands)))
        if len(commands) == 1 and is_own_cd(commands[0], pipeline):
            entered = os.path.join(folder, commands[0].argv[1])  # noqa: PTH118  text, as the rest of a line
            folder = entered if os.path.isdir(entered) else folder  # noqa: PTH112
    return replace(line, pipelines=tuple(pipelines)) if tuple(pipelines) != line.pipelines else line


def _expand(command: SimpleCommand, folder: str) -> SimpleCommand:
    if command.argv[0] == CD or not any(has_pattern(word) for word in command.argv):
        return command
    words = [each for word in command.argv for each in (expand_pattern(word, folder) if has_pattern(word) else (word,))]
    return replace(command, argv=tuple(words))
