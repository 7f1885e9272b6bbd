"""Evaluate the rules of every scope for a call: deny beats ask beats allow; the profile is the default. Pure."""

import posixpath
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.approval.canonical import canonical_arguments, kind_of
from metier.approval.profile import READING_ACTIONS, READING_TOOLS, ProfilePolicy
from metier.approval.rules import ALLOW, ORDER, SHELL, Call, Decision, Listed, Rule, Scope, Verdict, find_rule
from metier.approval.shell import Unit, build_call, get_outside_script, get_shell_rule, has_limits, read_shell_call
from metier.decisions import ActionStep, find_invocation
from metier.definitions.names import canonical_name, fold_id, name_capability
from metier.tools.effects import Effect
from metier.tools.protected import runs_by_itself
from metier.tools.toolbox import Obstacle, Toolbox

RUN_TASK, DELEGATE = "run_task", "delegate"
READ, GREP, GLOB = "Read", "Grep", "Glob"
_READERS = frozenset({READ, GREP, GLOB})
_OBSTACLES = {
    "unknown_tool": "tools of the run",
    "invalid_input": "schema of the tool",
    "permission_denied": "host settings",
}
"""Names of the obstacles that reject a call before any rule."""
# Journals contain the reasons in this module and replays compare them, so their wording must not change.
HIGH_RISK = "The risk of this call is high, and only a rule that names its tool can allow it"
_SETTINGS = Scope(kind="host", name="settings")
_VERBS: dict[Decision, str] = {"allow": "allows", "ask": "asks about", "deny": "denies"}


class RuleOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of one scope for a call."""

    scope: Scope
    decision: Decision | None = None
    """None if the scope has no rule for this call, or if its allow is ignored."""
    rule: Rule | None = None
    note: str = ""


class Explanation(Struct, frozen=True, kw_only=True):
    verdict: Verdict
    outcomes: tuple[RuleOutcome, ...]
    """One per scope, the widest scope first."""
    winner: RuleOutcome | None
    """The outcome that decided; None if the profile's default did."""
    tool: str
    arguments: Mapping[str, JsonValue]
    """In canonical form, as the rules saw them."""
    risk: str = ""
    """The tool's own risk level, or `low` for a command that only reads; empty if there is no such tool."""


class RulePolicy:
    """The policy of one run: the rules of its scopes over the default of its profile."""

    def __init__(
        self,
        profile: ProfilePolicy,
        tools: Toolbox,
        *,
        root: str,
        scopes: Sequence[Scope],
        skills: Sequence[Scope] = (),
        is_partial: bool = False,
    ) -> None:
        """`scopes` always apply, of `skills` only the one in charge. `is_partial`: more tools may exist than these."""
        self._is_partial = is_partial
        self._profile = profile
        self._tools = tools
        self._root = root
        self._scopes = tuple(scopes)
        self._skills = {canonical_name(scope.name): scope for scope in skills}

    @property
    def tools(self) -> Toolbox:
        return self._tools

    @property
    def root(self) -> str:
        return self._root

    def judge(self, action: ActionStep, *, skill: str) -> Verdict:
        return self.explain(action, skill=skill).verdict

    def judge_tool(self, action: ActionStep, *, skill: str) -> Verdict:
        """Evaluate the rules for a tool whose arguments are not known yet, without checking its schema."""
        return self._apply_risk(action, self._explain_rules(action, skill)).verdict

    def effect(self, action: ActionStep) -> Effect:
        return self._profile.effect(action)

    def explain(self, action: ActionStep, *, skill: str = "") -> Explanation:
        """Return the verdict with every scope's outcome. A call that cannot run is denied without asking the user."""
        explained = self._apply_running_files(action, self._apply_risk(action, self._explain_rules(action, skill)))
        if explained.verdict.decision == "deny" or (obstacle := self._find_obstacle(action)) is None:
            return explained
        outcome = RuleOutcome(scope=_SETTINGS, decision="deny", note=obstacle.reason)
        verdict = Verdict(decision="deny", reason=obstacle.reason, rule=_OBSTACLES[obstacle.code], code=obstacle.code)
        return replace(explained, verdict=verdict, outcomes=(outcome,), winner=outcome)

    def get_read_denial(self, path: str, *, skill: str) -> str:
        """Return why a rule denies reading this file, with whatever tool or feature; empty if none does."""
        denied = self._find_read_rule(path, skill)
        return build_verdict(denied).reason if denied is not None else ""

    def _find_read_rule(self, path: JsonValue, skill: str) -> RuleOutcome | None:
        """Find the rule that denies `Read` for a path. A rule for many tools (`*`) matches each tool's own call."""
        call = build_call(READ, frozenset({READ}), {"path": path}, root=self._root)
        for scope in self._list_scopes(skill):
            rule = find_rule(scope.tools, call)
            if rule is not None and rule.decision == "deny" and not rule.is_broad:
                return RuleOutcome(scope=scope, decision="deny", rule=rule)
        return None

    def _find_search_rule(self, call: Call, skill: str) -> RuleOutcome | None:
        """Find the `Read` rule that denies searching a path. `Glob` shows only names, so its rule must name paths."""
        if call.tool not in (GREP, GLOB):
            return None
        denied = self._find_read_rule(call.arguments.get("path") or ".", skill)
        names_paths = denied is not None and denied.rule is not None and bool(denied.rule.when)
        return denied if names_paths or call.tool == GREP else None

    def _may_be_elsewhere(self, name: str) -> bool:
        """Return True for a tool of a toolset or server that may not run yet, or if no tools are known at all."""
        return "." in name or "/" in name or not self._tools.names()

    def _apply_risk(self, action: ActionStep, explained: Explanation) -> Explanation:
        """Ask if a rule for many tools allows one of high risk. Shell commands are checked one by one instead."""
        tool = self._tools.find(explained.tool)
        risk = tool.info.risk if tool is not None and action.type in ("call_tool", "run_command") else ""
        explained = replace(explained, risk=explained.risk or risk)
        rule = explained.winner.rule if explained.winner is not None else None
        is_broad = rule is not None and rule.is_broad and explained.tool != SHELL
        if risk != "high" or not is_broad or explained.verdict.decision != "allow" or not self._profile.asks:
            return explained
        return replace(explained, verdict=Verdict(decision="ask", reason=HIGH_RISK, rule=explained.verdict.rule))

    def _apply_running_files(self, action: ActionStep, explained: Explanation) -> Explanation:
        """Ask if a rule for many files allows writing one that programs run or obey without being asked to."""
        if explained.verdict.decision != "allow" or not self._profile.asks or explained.tool == SHELL:
            return explained
        found = find_running_file(explained.arguments) if self.effect(action) != "read" else None
        rule = explained.winner.rule if explained.winner is not None else None
        if found is None or (rule is not None and names_file(rule, *found)):
            return explained
        reason = RUNS_BY_ITSELF.format(posixpath.basename(found[1]))
        return replace(explained, verdict=Verdict(decision="ask", reason=reason, rule=explained.verdict.rule))

    def _find_obstacle(self, action: ActionStep) -> Obstacle | None:
        """Return the obstacle of a call, if any: unknown name, schema violation, or a closed path."""
        name, arguments = name_call(action)
        if action.type not in ("call_tool", "run_command") or name in (RUN_TASK, DELEGATE) or is_steering(action):
            return None
        if self._is_partial and self._tools.find(name) is None and self._may_be_elsewhere(name):
            return None
        return self._tools.find_obstacle(name, arguments)

    def _explain_rules(self, action: ActionStep, skill: str) -> Explanation:
        call = self._build_call(action)
        if (unlisted := self._find_unlisted(action, call, skill)) is not None:
            return Explanation(
                verdict=Verdict(decision="deny", reason=unlisted.note, rule="skill list"),
                outcomes=(unlisted,),
                winner=unlisted,
                tool=call.tool,
                arguments=call.arguments,
            )
        if is_steering(action):
            return Explanation(verdict=ALLOW, outcomes=(), winner=None, tool=call.tool, arguments=call.arguments)
        if call.tool == SHELL:
            return self._explain_shell(action, call, skill)
        outcomes = tuple(evaluate_rules(scope, call) for scope in self._list_scopes(skill))
        winner = choose_strictest(outcomes)
        if (winner is None or winner.decision != "deny") and (denied := self._find_search_rule(call, skill)):
            outcomes, winner = (*outcomes, denied), denied
        verdict = build_verdict(winner) if winner is not None else self._judge_by_default(action, outcomes, call)
        return Explanation(verdict=verdict, outcomes=outcomes, winner=winner, tool=call.tool, arguments=call.arguments)

    def _find_unlisted(self, action: ActionStep, call: Call, skill: str) -> RuleOutcome | None:
        """Return the denial of a tool, skill or task that the skill in charge does not list, or None."""
        scope = self._skills.get(canonical_name(skill)) if skill else None
        if scope is None or not scope.limits:
            return None
        what: Listed
        if action.type == "call_skill":
            wanted = str(action.params.get("skill", ""))
            what, names = "skills", {canonical_name(wanted)}
            # A skill that calls itself gains nothing.
            is_free = canonical_name(skill) in names
        elif call.is_task:
            what, names, is_free, wanted = "tasks", {fold_id(call.tool)}, False, call.tool
        else:
            what, names, is_free, wanted = "tools", set(call.names), is_steering(action), call.tool
        if is_free or what not in scope.limits or not scope.limits[what].isdisjoint(names):
            return None
        return RuleOutcome(scope=scope, decision="deny", note=describe_unlisted(wanted, what, skill=scope.name))

    def _explain_shell(self, action: ActionStep, call: Call, skill: str) -> Explanation:
        """Judge every command of a line by itself. The strictest verdict is the line's, with its explanation."""
        line = read_shell_call(call, self._root)
        is_reading = all(unit.is_reading for unit in line.units)
        reading = self._judge_reading(skill) if is_reading else None
        found = [self._explain_unit(action, unit, skill=skill, reading=reading) for unit in line.units]
        # Among equals, prefer the one without a rule: otherwise a rule would seem to allow what only the profile does.
        verdict, outcomes, winner = max(found, key=lambda one: (ORDER[one[0].decision], one[2] is None))
        risk = "low" if is_reading else ""
        return Explanation(
            verdict=verdict, outcomes=outcomes, winner=winner, tool=call.tool, arguments=line.shown, risk=risk
        )

    def _judge_reading(self, skill: str) -> Verdict | None:
        """Return the verdict that lets a line run that only reads according to the tables, or None.

        Rules about the reading tools cannot be applied to programs. If there are any, programs need an approval.
        """
        if has_limits([scope.tools for scope in self._list_scopes(skill)], _READERS):
            return None
        return self._profile.judge_reading()

    def _explain_unit(
        self, action: ActionStep, unit: Unit, *, skill: str, reading: Verdict | None
    ) -> tuple[Verdict, tuple[RuleOutcome, ...], RuleOutcome | None]:
        scopes = self._list_scopes(skill)
        outcomes = tuple(evaluate_command(scope, unit) for scope in scopes)
        winner = choose_strictest(outcomes)
        # The skill's hash doesn't cover such a script: it may have changed since the user trusted the skill.
        if (blocked := self._find_outside_script(unit, scopes)) is not None and not _allows_by_name(winner):
            return build_verdict(blocked), (*outcomes, blocked), blocked
        if winner is not None:
            verdict = build_verdict(winner)
            is_broad = winner.rule is not None and winner.rule.is_broad and self._profile.asks
            if verdict.decision == "allow" and is_broad and not unit.is_vouched:
                verdict = Verdict(decision="ask", reason=HIGH_RISK, rule=verdict.rule)
            return verdict, outcomes, winner
        verdict = self._judge_by_default(action, outcomes, unit.narrow, reading=reading)
        if verdict.decision == "allow" and unit.is_unclear and has_limits([s.tools for s in scopes], unit.narrow.names):
            reason = (
                "A rule limits what the shell may do, and this command may start programs that its words do not name"
            )
            return Verdict(decision="ask", reason=reason), outcomes, None
        return verdict, outcomes, None

    def _find_outside_script(self, unit: Unit, scopes: Sequence[Scope]) -> RuleOutcome | None:
        """Return the denial of a command that may run a script which the skill in charge names outside its folder."""
        scope = scopes[-1] if scopes else Scope(kind="skill")
        script = get_outside_script(unit, scope.outside, self._root)
        if not script:
            return None
        note = f"SKILL.md names {script!r}, which is outside of the skill's folder. Put the script into that folder"
        return RuleOutcome(scope=scope, decision="deny", note=note)

    def _judge_by_default(
        self, action: ActionStep, outcomes: Sequence[RuleOutcome], call: Call, *, reading: Verdict | None = None
    ) -> Verdict:
        """Apply the default: lists of agents, tasks and skills ask about the rest; without any, the profile decides."""
        for one in outcomes:
            rules = one.scope.tasks if call.is_task else one.scope.tools
            if rules.is_written and one.scope.kind != "host":
                return Verdict(decision="ask", reason=f"No rule of {one.scope.title} allows this call")
        return reading or self._profile.judge(action, skill="")

    def _list_scopes(self, skill: str) -> tuple[Scope, ...]:
        in_charge = self._skills.get(canonical_name(skill)) if skill else None
        return (*self._scopes, in_charge) if in_charge is not None else self._scopes

    def _build_call(self, action: ActionStep) -> Call:
        name, arguments = name_call(action)
        if name == RUN_TASK:
            inputs = arguments.get("inputs")
            task = str(arguments.get("task", ""))
            given = canonical_arguments(inputs if isinstance(inputs, dict) else {}, self._root)
            return Call(task, frozenset({task}), given, is_task=True)
        tool = self._tools.find(name)
        # With all its names: a rule for one of them must hold whichever name the model uses.
        names = frozenset({name}) if tool is None else frozenset({name, tool.info.name, *tool.info.aliases})
        return build_call(tool.info.name if tool else name, names, arguments, root=self._root)


def name_call(action: ActionStep) -> tuple[str, dict[str, JsonValue]]:
    """Return the tool that an action calls, by the name that rules use, and its arguments."""
    match action.type:
        case "call_tool":
            arguments = action.params.get("arguments")
            return str(action.params.get("tool", "")), arguments if isinstance(arguments, dict) else {}
        case "run_command":
            return SHELL, action.params
        case "call_skill":
            inputs = find_invocation(action)
            if inputs is not None:
                return name_capability(str(action.params.get("skill", ""))), inputs
            return "use_skill", action.params
        case _:
            return action.type, action.params


def is_steering(action: ActionStep) -> bool:
    """Return True for an action that only steers the run and touches nothing outside it. Rules don't apply to it."""
    if find_invocation(action) is not None:
        return False
    return action.type in READING_ACTIONS or action.params.get("tool") in READING_TOOLS


def _allows_by_name(winner: RuleOutcome | None) -> bool:
    """Return True if a rule of the host, an agent or a task names and allows the whole command."""
    # A skill cannot vouch for a script outside its own folder.
    rule = winner.rule if winner is not None and winner.decision == "allow" and winner.scope.kind != "skill" else None
    return rule is not None and rule.is_exact


def describe_unlisted(name: str, what: Listed, *, skill: str) -> str:
    return f"{name!r} is not among the {what} of skill {skill!r}, which is in charge"


def evaluate_rules(scope: Scope, call: Call) -> RuleOutcome:
    """Evaluate the rules of one scope."""
    rules = scope.tasks if call.is_task else scope.tools
    rule = find_rule(rules, call)
    if rule is not None:
        return _build_outcome(scope, rule, decision=rule.decision)
    if not call.is_task and not scope.preapproved.isdisjoint(call.names):
        if scope.is_trusted:
            return RuleOutcome(scope=scope, decision="allow", note="It stands in allowed-tools")
        return RuleOutcome(
            scope=scope, note=f"It stands in allowed-tools, which do not count: {_describe_distrust(scope)}"
        )
    return _build_default_outcome(scope, rules.default)


def evaluate_command(scope: Scope, unit: Unit) -> RuleOutcome:
    """Evaluate the rules of one scope for one command of a line. `allowed-tools` never apply to the shell."""
    found = get_shell_rule(scope.tools, unit)
    if found.rule is not None and found.decision is not None:
        remark = "; ".join(filter(None, (found.rule.reason, found.remark))) if found.remark else ""
        return _build_outcome(scope, found.rule, decision=found.decision, note=found.note or remark)
    return _build_default_outcome(scope, scope.tools.default)


def choose_strictest(outcomes: Sequence[RuleOutcome]) -> RuleOutcome | None:
    """Deny beats ask beats allow; of equals the first, which is the widest scope."""
    deciding = [one for one in outcomes if one.decision is not None]
    return max(deciding, key=_get_strictness, default=None)


def build_verdict(winner: RuleOutcome) -> Verdict:
    """Build the verdict. Users read its reason, and so does the model if the call is denied."""
    assert winner.decision is not None
    rule, scope = winner.rule, winner.scope
    if rule is None:
        where = f"{scope.title} {_VERBS[winner.decision]} this call: {winner.note}"
        return Verdict(decision=winner.decision, reason=_sentence(where), rule=f"{scope.kind} default")
    name = f"{scope.kind} rule {rule.number} ({rule.location})"
    reason = f"Rule {rule.number} of {scope.title} {_VERBS[winner.decision]} this call"
    detail = winner.note or rule.reason
    return Verdict(decision=winner.decision, reason=f"{reason}: {detail}" if detail else reason, rule=name)


def _build_outcome(scope: Scope, rule: Rule, *, decision: Decision, note: str = "") -> RuleOutcome:
    if rule.decision == "allow" and not scope.is_trusted:
        return RuleOutcome(scope=scope, rule=rule, note=f"It allows, which does not count: {_describe_distrust(scope)}")
    return RuleOutcome(scope=scope, decision=decision, rule=rule, note=note)


def _build_default_outcome(scope: Scope, default: Decision | None) -> RuleOutcome:
    """Return the outcome of a list when none of its rules matches."""
    if default is None:
        return RuleOutcome(scope=scope, note="No rule matches")
    note = "No rule matches; this is the default of the list"
    if default == "allow" and not scope.is_trusted:
        return RuleOutcome(scope=scope, note=f"{note}, which does not count: {_describe_distrust(scope)}")
    return RuleOutcome(scope=scope, decision=default, note=note)


def _describe_distrust(scope: Scope) -> str:
    return "the skill is not trusted" if scope.kind == "skill" else "this folder came from elsewhere and is not trusted"


def _get_strictness(outcome: RuleOutcome) -> int:
    return ORDER[outcome.decision or "allow"]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


RUNS_BY_ITSELF = "{!r} is run or obeyed by programs that were not asked to, and only a rule that names it can allow it"


def find_running_file(arguments: Mapping[str, JsonValue]) -> tuple[str, str] | None:
    """Return key and value of the first argument that is the path of a file that runs by itself."""
    for key, value in arguments.items():
        if isinstance(value, str) and kind_of(key) == "path" and runs_by_itself(value):
            return key, value
    return None


def names_file(rule: Rule, key: str, path: str) -> bool:
    """Return True if the rule names this file: it would not allow another name in the same folder."""
    neighbor = posixpath.join(posixpath.dirname(path), "another name")
    return any(condition.key == key and not condition.test(neighbor) for condition in rule.when)
