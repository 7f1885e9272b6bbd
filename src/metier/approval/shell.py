"""Shell calls as rules see them: one unit for each command of the line, all of which must be allowed. Pure.

An allow rule is matched with the canonical form of a single command. It applies only if the arguments are known to be
harmless, or if the rule names the whole command. A deny rule is also matched with the line as it was written, and with
looser readings of it.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.approval.canonical import canonical_arguments
from metier.approval.matchers import COMMAND
from metier.approval.rules import ORDER, SHELL, Call, Decision, Rule, RuleList, Scope, find_rule, matches
from metier.tools.shell.allowlist import is_direct, is_telling, walk_commands
from metier.tools.shell.harmless import (
    CommandFolders,
    Naming,
    find_tables,
    get_objection,
    is_beneath,
    is_runner,
    is_unclear,
    is_vouched,
)
from metier.tools.shell.line import (
    NotUnderstood,
    ShellLine,
    SimpleCommand,
    is_name_list,
    parse_line,
    read_xargs,
    show_word,
)

_SEPARATORS = re.compile(r"[;|&\n(){}`]+")
_WORD_ENDS = re.compile(r"[\s;|&(){}`'\"=<>]+")
_GLOB = re.compile(r"[*?\[]")
_NESTED_CHANGE = re.compile(r"[$`]|(?:^|[\s;|&({])(?:cd|pushd|chdir)\s")
"""Text in which the shell computes paths, or changes the folder before it uses them."""
_UNKNOWN_FOLDER = re.compile(r"\b(?:cd|pushd)\s[^;|&\n]*[$`*?\[]")
_DISGUISE = str.maketrans("", "", "\\'\"")
"""Characters that the shell removes, and that can hide a word from a text search (`r\\m`, `r""m`)."""
_MAX_PIECES = 100
RUNS_CODE = "it runs code of the folder it is in"


@dataclass(slots=True)
class Whole:
    """The line as it was written. Each rule is matched with it once, however many commands it has."""

    call: Call
    _tried: dict[int, bool] = field(default_factory=dict[int, bool])

    def meets(self, rule: Rule) -> bool:
        known = self._tried.get(id(rule))
        if known is None:
            known = self._tried[id(rule)] = matches(rule, self.call)
        return known


class Unit(Struct, frozen=True, kw_only=True):
    """One command of a line, or a line that was not understood."""

    narrow: Call
    """The command alone, in canonical form."""
    whole: Whole
    wide: tuple[Call, ...] = ()
    """Other readings of the command, which only deny and ask rules are matched with."""
    argv: tuple[str, ...] = ()
    place: CommandFolders
    wrong: str = ""
    """The reason why no table applies to it, if any."""
    is_fed: bool = False
    """A pipe or a file is its input."""
    inputs: tuple[str, ...] = ()
    """Its input files."""
    over_files: tuple[str, ...] = ()
    """The command that `xargs` runs over a list of workspace files, with sample names as arguments."""

    @property
    def outside(self) -> str:
        """The first input outside the workspace; empty if there is none."""
        return next((path for path in self.inputs if not self.place.holds(path)), "")

    @property
    def is_opaque(self) -> bool:
        """Return True if the command's effect can't be determined from its words."""
        if not self.argv:
            return True
        found = find_tables(self.over_files or self.argv)
        return is_runner(self.argv[0]) and (found is None or all(table.acts for table in found.tables))

    @property
    def is_unclear(self) -> bool:
        """Return True if it may start a program that its words don't name, even a denied one."""
        return not self.argv or is_unclear(self.over_files or self.argv)

    @property
    def is_vouched(self) -> bool:
        """Return True if it is known to only read, wherever it runs."""
        return bool(self.argv) and not self.wrong and is_vouched(self.over_files or self.argv, self.place)

    @property
    def is_reading(self) -> bool:
        """Return True if it is known to only read, and to read only the workspace."""
        is_inside = all(is_beneath(folder, self.place.root) for folder in self.place.folders)
        return is_inside and self.is_vouched and not self.outside


class ShellCall(Struct, frozen=True, kw_only=True):
    units: tuple[Unit, ...]
    shown: Mapping[str, JsonValue]
    """The arguments for users, with the argv of every command, or the reason why there is none."""


class ShellFinding(Struct, frozen=True):
    """The outcome of a list of rules for one command."""

    rule: Rule | None = None
    decision: Decision | None = None
    note: str = ""
    """Why a matching allow rule does not apply."""
    remark: str = ""
    """A warning about an allowed command."""


def build_call(tool: str, names: frozenset[str], arguments: Mapping[str, JsonValue], *, root: str) -> Call:
    """Build a call with canonical arguments. The command line of a shell stays as it was written."""
    canonical = canonical_arguments(arguments, root)
    if tool == SHELL and COMMAND in arguments:
        canonical[COMMAND] = arguments[COMMAND]
    return Call(tool, names, canonical)


def judge_alone(rules: RuleList, call: Call, root: str) -> tuple[Rule | None, Decision]:
    """Return the strictest decision of one list about the commands of a line, with its rule. No match means ask."""
    if call.tool != SHELL:
        rule = find_rule(rules, call)
        return rule, (rule.decision if rule else rules.default) or "ask"
    findings = [get_shell_rule(rules, unit) for unit in read_shell_call(call, root).units]
    outcomes: list[tuple[Rule | None, Decision]] = [
        (found.rule, found.decision or rules.default or "ask") for found in findings
    ]
    return max(outcomes, key=lambda one: ORDER[one[1]])


def read_shell_call(call: Call, root: str) -> ShellCall:
    """Split a call of the shell, which has canonical arguments, into its commands."""
    given = call.arguments.get(COMMAND)
    text = given if isinstance(given, str) else ""
    line = parse_line(text)
    folder = call.arguments.get("cwd")
    place = CommandFolders(root or "/", (folder if isinstance(folder, str) else root or "/",))
    whole = Whole(_with_command(call, text))
    if isinstance(line, NotUnderstood):
        wide = tuple(_with_command(call, piece) for piece in _loosen(text))
        unit = Unit(narrow=whole.call, whole=whole, wide=wide, place=place, wrong=f"The line contains {line.reason}")
        return ShellCall(units=(unit,), shown={**call.arguments, "not_understood": line.reason})
    wrong = "" if is_direct(line) or is_telling(line, place) else "It changes the shell itself"
    units = tuple(
        replace(_build_unit(command, whole, place=where, before=before), wrong=wrong)
        for (command, where), before in zip(walk_commands(line, place), _list_before(line), strict=True)
    )
    commands: list[JsonValue] = [[show_word(word) for word in command.argv] for command in line.commands]
    return ShellCall(
        units=units,
        shown={**call.arguments, COMMAND: line.render(), "commands": commands},
    )


def get_shell_rule(rules: RuleList, unit: Unit) -> ShellFinding:
    """Return the first rule that applies. If an allow matches and does not apply, try the later rules, then ask."""
    short = ShellFinding()
    names = unit.narrow.names
    for rule in rules.rules:
        if rule.subject not in names and not rule.applies_to(names):
            continue
        finding = _try_allow(rule, unit) if rule.decision == "allow" else _try_limit(rule, unit)
        if finding is None:
            continue
        if not finding.note:
            return finding
        short = short if short.rule is not None else finding
    return short


def get_outside_script(unit: Unit, paths: Iterable[str], root: str) -> str:
    """Return the script of `paths` that a command may run, or an empty string. A command that only reads runs none."""
    scripts = {_resolve(root, path): path for path in paths}
    if not scripts or not unit.is_unclear:
        return ""
    whole = unit.whole.call.arguments.get(COMMAND)
    # A command may run its piped input, and any word of a line that was not understood may be a program.
    is_whole = unit.is_fed or not unit.argv
    # Marks are shown as written, because the patterns are compared with the script's path below.
    texts = (str(whole),) if is_whole else (*map(show_word, unit.argv), *unit.inputs)
    is_lost = _UNKNOWN_FOLDER.search(str(whole)) is not None
    for text in texts:
        words = {word for form in (text, text.translate(_DISGUISE)) for word in _WORD_ENDS.split(form) if word}
        by_name = is_lost or _NESTED_CHANGE.search(text) is not None
        found = (path for path in scripts if _names_script(path, words, unit.place.folders, by_name=by_name))
        if (path := next(found, None)) is not None:
            return scripts[path]
    return ""


def _names_script(path: str, words: Iterable[str], folders: Iterable[str], *, by_name: bool) -> bool:
    """Return True if a word may mean the script. `by_name`: the words' folder is unknown, so the file name decides."""
    if by_name and posixpath.basename(path) in {posixpath.basename(word) for word in words}:
        return True
    named = {_resolve(folder, word) for word in words for folder in folders}
    return path in named or any(_fits(path, pattern) for pattern in named if _GLOB.search(pattern))


def _fits(path: str, pattern: str) -> bool:
    """Match as the shell expands patterns: a wildcard does not match a slash."""
    parts, patterns = path.split("/"), pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def has_limits(rules: Iterable[RuleList], names: frozenset[str]) -> bool:
    """Return True if a rule denies or asks about calls with these names."""
    return any(rule.decision != "allow" and rule.applies_to(names) for listed in rules for rule in listed.rules)


def _try_limit(rule: Rule, unit: Unit) -> ShellFinding | None:
    if matches(rule, unit.narrow) or unit.whole.meets(rule):
        return ShellFinding(rule, rule.decision)
    for call in unit.wide:
        if matches(rule, call):
            return ShellFinding(rule, rule.decision)
    return None


def _try_allow(rule: Rule, unit: Unit) -> ShellFinding | None:
    """Match an allow rule. The finding has a note if the rule matches and does not apply."""
    if not matches(rule, unit.narrow):
        return ShellFinding(rule, "allow") if rule.is_exact and unit.whole.meets(rule) else None
    if rule.is_exact and unit.whole.meets(rule):
        return ShellFinding(rule, "ask" if (wrong := _get_elsewhere(rule, unit)) else "allow", wrong)
    if unit.outside:
        return ShellFinding(rule, "ask", f"its input {unit.outside[:80]!r} is outside of the workspace")
    if unit.is_fed and unit.is_opaque:
        return ShellFinding(
            rule, "ask", "It may run what it is fed; only a rule that names the whole line can allow it"
        )
    objection = ("" if rule.is_exact else _get_objection(rule, unit)) or _get_elsewhere(rule, unit)
    if objection:
        return ShellFinding(rule, "ask", objection)
    return ShellFinding(rule, "allow", remark=RUNS_CODE if not unit.is_vouched and unit.is_unclear else "")


def _get_elsewhere(rule: Rule, unit: Unit) -> str:
    """Return the objection to a command that may run in another folder than the rule means; empty if there is none.

    A rule means the folders that its `cwd` names, by default the workspace's root. Commands that only read may run
    anywhere.
    """
    demands = [condition for condition in rule.when if condition.key == "cwd"]
    if demands:
        # After a `cd` the command may run in another folder than the call's `cwd`.
        others = [each for each in unit.place.folders if not all(condition.test(each) for condition in demands)]
        return f"It may run in {others[0]!r}, which the rule's 'cwd' does not name" if others else ""
    # A `cd` before it may have failed, so every folder that it may run in counts.
    others = [each for each in unit.place.folders if each != unit.place.root]
    if not others or unit.is_vouched:
        return ""
    return f"It would act in {others[0]!r}, and the rule is for the workspace's own folder; name the folder by 'cwd'"


def _get_objection(rule: Rule, unit: Unit) -> str:
    text = unit.narrow.arguments.get(COMMAND)
    assert isinstance(text, str)
    if unit.wrong:
        return f"{unit.wrong}; only a rule that names the whole line can allow it"
    naming = Naming(prefixes=rule.prefixes, expressions=rule.expressions)
    if unit.over_files:
        return "" if unit.is_vouched else f"{unit.over_files[0]!r} over files is not known to be harmless"
    return get_objection(unit.argv, text, naming=naming, place=unit.place)


def _list_before(line: ShellLine) -> Iterator[SimpleCommand | None]:
    """List, for each command, the command that feeds it through a pipe."""
    for pipeline in line.pipelines:
        yield None
        yield from pipeline.commands[:-1]


def _build_unit(command: SimpleCommand, whole: Whole, *, place: CommandFolders, before: SimpleCommand | None) -> Unit:
    program, *words = command.argv
    xargs = read_xargs(command.argv)
    # A deny of `rm` must also match `/bin/rm`, and `rm` behind `xargs`.
    others: list[tuple[str, ...]] = [(posixpath.basename(program), *words)] if "/" in program else []
    others += [xargs.command] if xargs is not None else []
    over_files: tuple[str, ...] = ()
    if xargs is not None and before is not None and is_name_list(before.argv, is_zero=xargs.is_zero):
        over_files = xargs.over_files if is_vouched(before.argv, place) else ()
    return Unit(
        narrow=_with_command(whole.call, command.render(), command.argv),
        whole=whole,
        wide=tuple(_with_command(whole.call, SimpleCommand(argv).render(), argv) for argv in others),
        argv=command.argv,
        place=place,
        is_fed=before is not None or bool(command.inputs),
        inputs=command.inputs,
        over_files=over_files,
    )


def _with_command(call: Call, text: str, argv: tuple[str, ...] = ()) -> Call:
    arguments: dict[str, JsonValue] = {**call.arguments, COMMAND: text}
    if argv:
        arguments["argv"] = [show_word(word) for word in argv]
    return Call(call.tool, call.names, arguments)


def _resolve(folder: str, path: str) -> str:
    return path if path.startswith("~/") else posixpath.normpath(posixpath.join(folder, path))


def _loosen(text: str) -> list[str]:
    """Split a line at its separators and drop quotes, backslashes and repeated blanks, to reveal hidden commands."""
    # Every deny rule is matched with every piece, and a line may consist of separators.
    pieces = _SEPARATORS.split(text.translate(_DISGUISE))[:_MAX_PIECES]
    return [" ".join(piece.split()) for piece in pieces if piece.strip()]


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_SHELL = frozenset({SHELL})
_PROBES = ("", " a", " -z --long=1 'x y'", " https://host/path?q=1#f ../é", " \\$(x) | y; z")
"""Sample arguments: a rule that denies a program with all of these denies it with any."""


def list_denied_programs(scopes: Iterable[Scope]) -> frozenset[str]:
    """List the programs that some scope denies with any arguments."""
    return frozenset(name for scope in scopes for name in _list_in(scope.tools))


def _list_in(rules: RuleList) -> Iterable[str]:
    """List the denied programs, except those that an earlier rule may allow, because the first match decides."""
    spared: set[str] = set()
    for rule in rules.rules:
        if not rule.applies_to(_SHELL):
            continue
        if rule.decision != "deny":
            # It may allow any program, so no later denial is certain.
            if not rule.prefixes or rule.is_exact or rule.expressions:
                return
            spared |= {prefix.partition(" ")[0] for prefix in rule.prefixes}
            continue
        yield from (name for name in _list_names(rule) if name not in spared)


def _list_names(rule: Rule) -> Iterable[str]:
    if len(rule.when) != 1 or rule.when[0].key != COMMAND:
        return
    test = rule.when[0].test
    for text in rule.prefixes | rule.expressions:
        name = text.strip()
        if _NAME.fullmatch(name) and all(test(name + probe) for probe in _PROBES):
            yield name
