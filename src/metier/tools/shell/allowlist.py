"""The lines that `shell.mode` allows: in `allowlist` mode, those whose every command begins with a listed prefix. Pure.

Never allowed are commands that set setuid or setgid modes. Such a file outlives the run and every sandbox: if the
agent runs as root, or as a user that others trust, it is a door. No work on a project needs one.
"""

import posixpath
import re
from collections.abc import Iterable, Sequence

from metier.tools.options import ShellOptions
from metier.tools.shell.harmless import CommandFolders, Naming, get_objection, is_runner, is_vouched
from metier.tools.shell.line import NotUnderstood, Pipeline, ShellLine, SimpleCommand, canonical_command, has_pattern
from metier.tools.shell.programs import BUILTINS

_NUMBER = re.compile(r"[-+=]?0*([0-7]{4,})")
_LETTERS = re.compile(r"(?:[ugoa]*[-+=][rwxXstugo]*)+(?:,(?:[ugoa]*[-+=][rwxXstugo]*)+)*")
_SETTING = re.compile(r"[+=][rwxX]*s")
_DISGUISE = str.maketrans("", "", "\\'\"")
_SPECIAL = 0o6000
_MODE_OPTIONS = ("-m", "--mode")
_BY_OPTION = frozenset({"install", "mkdir", "mkfifo", "mknod", "ginstall", "gmkdir"})
_BY_WORD = frozenset({"chmod", "gchmod"})
_ACCESS_LIST = frozenset({"setcap"})
_IN_TEXT = re.compile(
    r"\b(?:g?chmod|g?install|mkdir|mkfifo|mknod)\b[^\n;|&]*?[\s=\"']"
    r"(?:[-+=]?0*[2-7][0-7]{3}\b|[ugoa,rwxXst+=-]*[+=][rwxX]*s)|\bsetcap\b"
)
_CALLS = re.compile(r"\b(?:os\.)?f?chmod(?:at)?\s*\([^)]*\b0o?[2-7][0-7]{3}\b|\bS_IS[UG]ID\b")
"""The same in code that a line hands to an interpreter."""


def get_special_mode(line: ShellLine | NotUnderstood, text: str) -> str:
    """The command that would set such a mode, as it is written; empty where none does.

    Words are read where the line is understood, also those of programs that run programs. A line that only a shell can
    read is searched: what looks like it is taken for it.
    """
    if isinstance(line, ShellLine):
        commands = line.commands
        return next((each.render() for each in commands if _sets_special_mode(each.argv) or _runs_one(each.argv)), "")
    plain = text.translate(_DISGUISE)
    found = _IN_TEXT.search(text) or _CALLS.search(text) or _IN_TEXT.search(plain)
    return found[0] if found else ""


def _runs_one(argv: Sequence[str]) -> bool:
    """`sh -c "chmod …"`: of a program that runs programs a word may be a line, or code, of its own."""
    if not is_runner(argv[0]) or argv[0] == "git":
        return False
    return any(_IN_TEXT.search(word) or _CALLS.search(word) for word in argv[1:] if " " in word)


def _sets_special_mode(argv: Sequence[str]) -> bool:
    """`argv`, or a command that stands behind others in it: `find … -exec chmod u+s`, `sudo`, `env`, `xargs`."""
    for index, word in enumerate(argv):
        name, rest = posixpath.basename(word), argv[index + 1 :]
        if name in _ACCESS_LIST and (index == 0 or rest):
            return True
        if name in _BY_WORD and any(_is_special(each) for each in rest):
            return True
        if name in _BY_OPTION and any(_is_special(mode) for mode in _list_modes(rest)):
            return True
    return False


def _list_modes(words: Sequence[str]) -> Iterable[str]:
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word in _MODE_OPTIONS and index + 1 < len(words):
            yield words[index + 1]
        elif equals and len(name) > len("--") and "--mode".startswith(name):
            yield value
        elif word.startswith("-") and not word.startswith("--") and "m" in word:
            yield word.partition("m")[2]


def _is_special(word: str) -> bool:
    if found := _NUMBER.fullmatch(word):
        # `-4755` takes the bits away.
        return not word.startswith("-") and bool(int(found[1], 8) & _SPECIAL)
    return bool(_LETTERS.fullmatch(word)) and bool(_SETTING.search(word))


CD = "cd"


def find_refusal(
    line: ShellLine | NotUnderstood, options: ShellOptions, place: CommandFolders, *, text: str = ""
) -> str:
    """Why this line does not run, whatever rules say, as a sentence; empty when it does. `text` is what was written."""
    if not options.enabled or options.mode == "off":
        return "The shell is turned off (shell.mode)"
    if options.cwd == "workspace" and isinstance(line, ShellLine) and (wrong := _get_leaving(line, place)):
        return wrong
    if special := get_special_mode(line, text):
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


def _get_leaving(line: ShellLine, place: CommandFolders) -> str:
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
    objection = get_objection(command.argv, text, naming=naming, place=place)
    if outside is not None and not objection:
        objection = f"input {outside[:80]!r} is outside of the workspace"
    return f"Command {text[:200]!r} is not let through by shell.allowed_prefixes: {objection}" if objection else ""
