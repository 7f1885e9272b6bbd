"""Cost of a policy decision with 200 rules of which only the last matches; for the shell, parsing included."""

import statistics
import time

from pydantic import JsonValue

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


_COMMANDS = (
    "{{allow: true, when: {{command: {{startsWith: tool{n} run}}}}}}",
    "{{allow: true, when: {{command: {{matches: 'tool{n} (plan|show) [a-z]+'}}}}}}",
    "{{allow: false, when: {{command: {{contains: forbidden{n}}}}}}}",
    "{{verdict: ask, when: {{argv: {{contains: --force{n}}}}}}}",
)


def rows() -> list[Row]:
    write: dict[str, JsonValue] = {"path": "docs/a/../page.md", "text": "x" * 500, "options": {"mode": "w"}}
    short: dict[str, JsonValue] = {"command": "git log --oneline -5 --format='%h %s' -- src"}
    piped: dict[str, JsonValue] = {
        "command": "cd src && git log --oneline -20 -- a.py | head -5; git diff HEAD~1 --stat 2>&1"
    }
    return [
        _measure("verdict with {} rules of the same tool", _build_files_policy(), "Write", write, TARGET_MICROSECONDS),
        _measure("verdict on a command with {} rules for the shell", _build_shell_policy(), "Bash", short, 1000),
        _measure("verdict on a line of four commands", _build_shell_policy(), "Bash", piped, 1000),
    ]


def _measure(name: str, policy: RulePolicy, tool: str, arguments: dict[str, JsonValue], target: int) -> Row:  # noqa: PLR0917
    call = build_step(tool, arguments, call_id="")
    assert policy.judge(call, skill="").decision == "allow"
    costs: list[float] = []
    for _ in range(CALLS):
        started = time.perf_counter()
        policy.judge(call, skill="")
        costs.append(1e6 * (time.perf_counter() - started))
    median = statistics.median(costs)
    return Row(f"{name.format(RULES)} (median)", f"{median:.0f} µs", f"<= {target} µs", median <= target)


def _build_shell_policy() -> RulePolicy:
    rules = [_COMMANDS[n % len(_COMMANDS)].format(n=n).replace("{", "{tool: Bash, ", 1) for n in range(RULES - 3)]
    rules += [
        f"{{tool: Bash, allow: true, when: {{command: {{startsWith: {name}}}}}}}" for name in ("cd", "head", "git")
    ]
    return _build([f"  - {rule}" for rule in rules])


def _build_files_policy() -> RulePolicy:
    lines = [
        f"  - {{tool: Write, allow: true, when: {{{_MATCHERS[n % len(_MATCHERS)].format(n=n)}}}}}"
        for n in range(RULES - 1)
    ]
    lines.append("  - {tool: Write, allow: true, when: {path: {startsWith: docs/}}}")
    return _build(lines)


def _build(lines: list[str]) -> RulePolicy:
    reader = ScopeReader(root="/repo", tools=frozenset({"Write", "Bash"}))
    scope = reader.read_policy("rules:\n" + "\n".join(lines), file="policy.yaml")
    reader.check("The rules")
    tools = Toolbox()
    return RulePolicy(ProfilePolicy("guarded", tools), tools, root="/repo", scopes=(scope,), is_partial=True)
