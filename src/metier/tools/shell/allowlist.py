"""The lines that `shell.mode` allows: in `allowlist` mode, every command must start with a listed prefix. Pure.

Commands that set setuid or setgid modes are never allowed. Such a file outlives the run and its sandbox, and gives the
rights of the agent's user to everyone. No work on a project needs one.
"""

import posixpath
import re
from collections.abc import Iterable, Sequence

from metier.tools.options import ShellOptions
from metier.tools.shell.harmless import CommandFolders, Naming, get_objection, is_runner, is_vouched
from metier.tools.shell.line import NotUnderstood, Pipeline, ShellLine, SimpleCommand, canonical_command, has_pattern
from metier.tools.shell.programs import BUILTINS

_NUMBER = re.compile(r"[-+=]?0*([0-7]{4,})")
"""A mode with at least four digits: the fourth from the right has the setuid and setgid bits."""
_LETTERS = re.compile(r"(?:[ugoa]*[-+=][rwxXstugo]*)+(?:,(?:[ugoa]*[-+=][rwxXstugo]*)+)*")
_SETTING = re.compile(r"[+=][rwxX]*s")
# A shell drops these, so `ch"mo"d` and `ch\mod` are the same command.
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
"""The same in code for an interpreter."""


def get_special_mode(line: ShellLine | NotUnderstood, text: str) -> str:
    """Return the command that would set a setuid or setgid mode; empty if there is none.

    The words of an understood line are parsed, including those of programs that run programs. Any other line is
    searched for text that looks like such a command.
    """
    if isinstance(line, ShellLine):
        commands = line.commands
        return next((each.render() for each in commands if _sets_special_mode(each.argv) or _runs_one(each.argv)), "")
    plain = text.translate(_DISGUISE)
    found = _IN_TEXT.search(text) or _CALLS.search(text) or _IN_TEXT.search(plain)
    return found[0] if found else ""


def _runs_one(argv: Sequence[str]) -> bool:
    """Return True if a word of a runner is a line or code that sets such a mode: `sh -c "chmod …"`."""
    if not is_runner(argv[0]) or argv[0] == "git":
        return False
    return any(_IN_TEXT.search(word) or _CALLS.search(word) for word in argv[1:] if " " in word)


def _sets_special_mode(argv: Sequence[str]) -> bool:
    """Return True if `argv`, or a command after another in it, sets such a mode: `find … -exec chmod u+s`, `sudo`."""
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
        # GNU programs accept every unambiguous abbreviation of a long option.
        elif equals and len(name) > len("--") and "--mode".startswith(name):
            yield value
        elif word.startswith("-") and not word.startswith("--") and "m" in word:
            yield word.partition("m")[2]


def _is_special(word: str) -> bool:
    if found := _NUMBER.fullmatch(word):
        # `-4755` removes the bits.
        return not word.startswith("-") and bool(int(found[1], 8) & _SPECIAL)
    return bool(_LETTERS.fullmatch(word)) and bool(_SETTING.search(word))


CD = "cd"
SHELL_BUILTINS = frozenset(BUILTINS.split())


def find_refusal(
    line: ShellLine | NotUnderstood, options: ShellOptions, place: CommandFolders, *, text: str = ""
) -> str:
    """Return why the settings reject this line, as a sentence; empty if they don't. `text` is the line as written."""
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
    """Return the reason to reject a line with a `cd` that leaves the workspace; empty if there is none."""
    for command, where in walk_commands(line, place):
        if command.argv[0] != CD:
            continue
        # The last folder is the one that is reached if every `cd` before succeeded.
        here = CommandFolders(where.root, where.folders[-1:])
        folders = command.argv[1:]
        if not folders or any(folder.startswith("-") or not here.holds(folder) for folder in folders):
            return f"Command {command.render()[:200]!r} leaves the workspace, where commands have to stay (shell.cwd)"
    return ""


def walk_commands(line: ShellLine, place: CommandFolders) -> Sequence[tuple[SimpleCommand, CommandFolders]]:
    """List every command with the folders it may run in: a `cd` before it may have succeeded or failed."""
    found: list[tuple[SimpleCommand, CommandFolders]] = []
    for pipeline in line.pipelines:
        for command in pipeline.commands:
            found.append((command, place))
            if is_own_cd(command, pipeline):
                place = place.enter(command.argv[1])
    return found


def is_own_cd(command: SimpleCommand, pipeline: Pipeline) -> bool:
    """Return True for a `cd` to a literal folder outside a pipe, which affects the commands after it."""
    is_plain = command.argv[0] == CD and len(command.argv) == 2 and not command.argv[1].startswith("-")
    return is_plain and not has_pattern(command.argv[1]) and len(pipeline.commands) == 1


def is_direct(line: ShellLine) -> bool:
    """Return True if the line can run word by word, without a shell."""
    return all(
        command.argv[0] not in SHELL_BUILTINS and (command.argv[0] != CD or is_own_cd(command, pipeline))
        for pipeline in line.pipelines
        for command in pipeline.commands
    )


def is_telling(line: ShellLine, place: CommandFolders) -> bool:
    """Return True if its builtins only print facts (`command -v`, `type`) and its words are literal."""
    return all(
        not command.is_open
        and command.argv[0] != CD
        and (command.argv[0] not in SHELL_BUILTINS or is_vouched(command.argv, place))
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
