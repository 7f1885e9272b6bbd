"""Rules as text, and their verdicts on calls."""

from collections.abc import Sequence

from pydantic import JsonValue

from metier.approval.judge import Explanation, RulePolicy
from metier.approval.profile import ProfilePolicy
from metier.approval.rules import Scope, ScopeKind
from metier.approval.scopes import ScopeReader
from metier.context.decoder import build_step
from metier.definitions.names import Profile
from metier.tools.toolbox import Toolbox

TOOLS = frozenset({"Read", "Write", "Edit", "Bash", "WebFetch"})


def read_scope(text: str, kind: ScopeKind = "host") -> Scope:
    reader = ScopeReader(root="/repo", tools=TOOLS)
    scope = reader.read_policy(text, file="policy.yaml", kind=kind)
    assert reader.problems == []
    return scope


def read_problems(text: str) -> list[str]:
    reader = ScopeReader(root="/repo", tools=TOOLS)
    scope = reader.read_policy(text, file="policy.yaml")
    assert scope.tools.rules == ()
    return [problem.render() for problem in reader.problems]


def judge(
    scopes: Sequence[Scope],
    tool: str,
    arguments: dict[str, JsonValue],
    *,
    profile: Profile = "guarded",
    skills: Sequence[Scope] = (),
) -> Explanation:
    tools = Toolbox()
    policy = RulePolicy(
        ProfilePolicy(profile, tools), tools, root="/repo", scopes=scopes, skills=skills, is_partial=True
    )
    return policy.explain(build_step(tool, arguments, call_id=""), skill=skills[0].name if skills else "")
