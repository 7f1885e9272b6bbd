"""Programs that a list of rules denies whatever their arguments are: a sandbox can keep these from being run. Pure."""

import re
from collections.abc import Iterable

from metier.approval.matchers import COMMAND
from metier.approval.rules import SHELL, Rule, RuleList, Scope

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_SHELL = frozenset({SHELL})
_PROBES = ("", " a", " -z --long=1 'x y'", " https://host/path?q=1#f ../é", " \\$(x) | y; z")
"""Arguments of several kinds: a rule that denies all of these looks at the program alone."""


def list_denied_programs(scopes: Iterable[Scope]) -> frozenset[str]:
    """Names of programs of which no command is ever allowed or asked about. Every scope may deny."""
    return frozenset(name for scope in scopes for name in _list_in(scope.tools))


def _list_in(rules: RuleList) -> Iterable[str]:
    """The first rule that matches speaks, so a program that an earlier one may allow is left out."""
    spared: set[str] = set()
    for rule in rules.rules:
        if not rule.speaks_of(_SHELL):
            continue
        if rule.decision != "deny":
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
