"""What `shell.mode` lets through: in `allowlist` mode, lines whose every command begins with a listed prefix. Pure."""

from collections.abc import Sequence

from metier.tools.shell.harmless import CommandFolders, Naming, find_objection, is_vouched
from metier.tools.shell.line import NotUnderstood, Pipeline, ShellLine, SimpleCommand, canonical_command
from metier.tools.shell.options import ShellOptions
from metier.tools.shell.programs import BUILTINS
from metier.tools.shell.setuid_modes import find_special_mode
from metier.tools.shell.words import has_pattern

CD = "cd"


def find_refusal(
    line: ShellLine | NotUnderstood, options: ShellOptions, place: CommandFolders, *, text: str = ""
) -> str:
    """Why this line does not run, whatever rules say, as a sentence; empty when it does. `text` is what was written."""
    if not options.enabled or options.mode == "off":
        return "The shell is turned off (shell.mode)"
    if options.cwd == "workspace" and isinstance(line, ShellLine) and (wrong := _find_leaving(line, place)):
        return wrong
    if special := find_special_mode(line, text):
        return f"{special[:200]!r} gives a file the rights of its owner for any user who runs it (setuid, setgid)"
    if options.mode == "full":
        return ""
    if isinstance(line, NotUnderstood):
        return f"Only listed commands run here (shell.allowed_prefixes), and this line contains {line.reason}"
    prefixes = [canonical_command(prefix) for prefix in options.allowed_prefixes]
    for command, where in walk_commands(line, place):
        if wrong := _refuse(command, prefixes, where):
            return wrong
    return ""


def _find_leaving(line: ShellLine, place: CommandFolders) -> str:
    """A `cd` that leads out of the workspace, where commands must stay in it."""
    for command, where in walk_commands(line, place):
        if command.argv[0] != CD:
            continue
        # Where it is if every `cd` before it did what it says.
        here = CommandFolders(where.root, where.folders[-1:])
        folders = command.argv[1:]
        if not folders or any(folder.startswith("-") or not here.holds(folder) for folder in folders):
            return f"Command {command.render()[:200]!r} leaves the workspace, where commands have to stay (shell.cwd)"
    return ""


def walk_commands(line: ShellLine, place: CommandFolders) -> Sequence[tuple[SimpleCommand, CommandFolders]]:
    """Every command with the folders it may run in: behind a `cd` the one it leads to, or that before it."""
    found: list[tuple[SimpleCommand, CommandFolders]] = []
    for pipeline in line.pipelines:
        for command in pipeline.commands:
            found.append((command, place))
            if is_own_cd(command, pipeline):
                place = place.enter(command.argv[1])
    return found


def is_own_cd(command: SimpleCommand, pipeline: Pipeline) -> bool:
    """A change of the folder that lasts: not in a pipe, and to a place that is written out."""
    is_plain = command.argv[0] == CD and len(command.argv) == 2 and not command.argv[1].startswith("-")
    return is_plain and not has_pattern(command.argv[1]) and len(pipeline.commands) == 1


def is_direct(line: ShellLine) -> bool:
    """It can be run word for word without a shell."""
    builtins = BUILTINS.split()
    return all(
        command.argv[0] not in builtins and (command.argv[0] != CD or is_own_cd(command, pipeline))
        for pipeline in line.pipelines
        for command in pipeline.commands
    )


def is_telling(line: ShellLine, place: CommandFolders) -> bool:
    """Its builtins only tell something (`command -v`, `type`), so a shell may run it: its words are literal."""
    builtins = BUILTINS.split()
    return all(
        not command.is_open
        and command.argv[0] != CD
        and (command.argv[0] not in builtins or is_vouched(command.argv, place))
        for command in line.commands
    )


def _refuse(command: SimpleCommand, prefixes: Sequence[str], place: CommandFolders) -> str:
    text = command.render()
    matching = [prefix for prefix in prefixes if text == prefix or text.startswith(prefix + " ")]
    if not matching:
        return f"Command {text[:200]!r} begins with none of shell.allowed_prefixes"
    naming = Naming(prefixes=matching, trusts_unknown=True)
    outside = next((path for path in command.inputs if not place.holds(path)), None)
    objection = find_objection(command.argv, text, naming=naming, place=place)
    if outside is not None and not objection:
        objection = f"input {outside[:80]!r} is outside of the workspace"
    return f"Command {text[:200]!r} is not let through by shell.allowed_prefixes: {objection}" if objection else ""
