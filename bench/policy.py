"""What a verdict costs with 200 rules, of which only the last speaks of the call."""

import statistics
import time

from bench.table import Row
from metier.approval.judge import RulePolicy
from metier.approval.profile import ProfilePolicy
from metier.approval.scopes import ScopeReader
from metier.context.decoder import build_step
from metier.tools.toolbox import Toolbox

RULES = 200
CALLS = 2_000
TARGET_MICROSECONDS = 150
_MATCHERS = (
    "path: {{startsWith: src/part{n}/}}",
    "path: {{matches: 'lib/part{n}/.*\\.py'}}",
    "path: {{in: [a{n}.txt, b{n}.txt]}}",
    "options.mode: {{anyOf: [{{equals: {n}}}, {{contains: m{n}}}]}}",
)


def rows() -> list[Row]:
    policy = _build_policy()
    call = build_step("Write", {"path": "docs/a/../page.md", "text": "x" * 500, "options": {"mode": "w"}}, call_id="")
    assert policy.judge(call, skill="").decision == "allow"
    costs: list[float] = []
    for _ in range(CALLS):
        started = time.perf_counter()
        policy.judge(call, skill="")
        costs.append(1e6 * (time.perf_counter() - started))
    median = statistics.median(costs)
    return [
        Row(
            f"verdict with {RULES} rules of the same tool (median)",
            f"{median:.0f} µs",
            f"<= {TARGET_MICROSECONDS} µs",
            median <= TARGET_MICROSECONDS,
        )
    ]


def _build_policy() -> RulePolicy:
    lines = [
        f"  - {{tool: Write, allow: true, when: {{{_MATCHERS[n % len(_MATCHERS)].format(n=n)}}}}}"
        for n in range(RULES - 1)
    ]
    lines.append("  - {tool: Write, allow: true, when: {path: {startsWith: docs/}}}")
    reader = ScopeReader(root="/repo", tools=frozenset({"Write"}))
    scope = reader.read_policy("rules:\n" + "\n".join(lines), file="policy.yaml")
    reader.check("The rules")
    tools = Toolbox()
    return RulePolicy(ProfilePolicy("guarded", tools), tools, root="/repo", scopes=(scope,))
