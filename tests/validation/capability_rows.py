# ruff: noqa: E501 - a line of the table is a line of the output
"""The table of problems: contracts of callable skills, and the code behind them."""

from problem_row import GOOD_SKILL, Row, skill

IMPL = ".agent/skills/s/impl.py"
FINE = "def execute(context):\n    return {}\n"
BLOCKING = """import asyncio
import subprocess
import threading
import requests
import httpx


async def other():
    await asyncio.sleep(1)


def execute(context):
    threading.Thread(target=print).start()
    requests.get('https://example.org')
    httpx.get('https://example.org')
    subprocess.run(['true'])
    subprocess.Popen(['true'])
    input()
    return {}
"""


def callable_skill(contract: str, code: str = FINE) -> dict[str, str | bytes]:
    return {**skill(GOOD_SKILL + contract), IMPL: code}


ROWS = (
    Row(
        name="contract of code with wrong values",
        files=callable_skill(
            "interaction_outcomes:\n  allowed_intermediate_states: [waiting]\n  max_turns: 2.5\n  supports_resume: perhaps\n  input_request_schema:\n    - name: a\n      enum: b\n    - name: a\n    - type: string\nstate_persistence: fact_only\ntimeout_seconds: 0\nmax_fix_iterations: 1.5\n"
        ),
        says=(
            ".agent/skills/s/SKILL.md:5: error: Field 'allowed_intermediate_states' can have 'input_required', 'delegating' or 'paused', not 'waiting' [bad_value]",
            ".agent/skills/s/SKILL.md:6: error: Field 'max_turns' must be a whole number from 1 to 20 [bad_value]",
            ".agent/skills/s/SKILL.md:7: error: Field 'supports_resume' must be true or false [bad_value]",
            ".agent/skills/s/SKILL.md:10: error: Field 'enum' must be a list [not_a_list]",
            ".agent/skills/s/SKILL.md:11: error: An item of 'input_request_schema' repeats the name 'a' [duplicate_name]",
            ".agent/skills/s/SKILL.md:12: error: An item of 'input_request_schema' has no 'name' [missing_name]",
            ".agent/skills/s/SKILL.md:13: error: Field 'state_persistence' must be 'none', 'facts_only' or 'full_events', not 'fact_only' [bad_value] (Did you mean 'facts_only'?)",
            ".agent/skills/s/SKILL.md:14: error: Field 'timeout_seconds' must be a number from 1 to 3600 [bad_value]",
            ".agent/skills/s/SKILL.md:15: error: Field 'max_fix_iterations' must be a whole number from 0 to 3 [bad_value]",
        ),
    ),
    Row(
        name="contract with an absurd number",
        files=callable_skill(f"max_fix_iterations: {'9' * 5000}\n"),
        says=(
            ".agent/skills/s/SKILL.md:4: error: Field 'max_fix_iterations' must be a whole number from 0 to 3 [bad_value]",
        ),
    ),
    Row(
        name="contract with a path that leads away",
        files=callable_skill("required_artifacts: [/x, ../y]\n"),
        says=(
            ".agent/skills/s/SKILL.md:4: error: Field 'required_artifacts' has the path '/x', which leaves the folder [contract_path]",
            ".agent/skills/s/SKILL.md:4: error: Field 'required_artifacts' has the path '../y', which leaves the folder [contract_path]",
        ),
    ),
    Row(
        name="contract with schemas that cannot be used",
        files=callable_skill(
            'input_schema: {properties: {n: {$ref: "#/$defs/nope"}}}\noutput_schema: {$ref: "https://example.org/x"}\ninput_request_jsonschema: [a]\n'
        ),
        says=(
            ".agent/skills/s/SKILL.md:4: error: Field 'input_schema' is not a usable JSON Schema: $ref '#/$defs/nope' does not resolve [contract_schema]",
            ".agent/skills/s/SKILL.md:5: error: Field 'output_schema' is not a usable JSON Schema: $ref 'https://example.org/x' leads outside the schema; only references inside it are followed [contract_schema]",
            ".agent/skills/s/SKILL.md:6: error: Field 'input_request_jsonschema' is not a usable JSON Schema: it must be a mapping [contract_schema]",
        ),
    ),
    Row(
        name="contract with a pattern that cannot be matched in linear time",
        files=callable_skill('input_schema:\n  properties:\n    n: {pattern: "(?=a)b"}\n'),
        says=(
            ".agent/skills/s/SKILL.md:6: error: Field 'input_schema' is not a usable JSON Schema: the pattern '(?=a)b' cannot be used: invalid perl operator: (?= (patterns are matched with RE2, which has no lookaround and no backreferences) (at $.properties.n.pattern) [contract_schema]",
        ),
    ),
    Row(
        name="contract whose fields contradict each other",
        files=callable_skill(
            "interaction_outcomes: {allowed_intermediate_states: [paused], supports_resume: false}\nstate_persistence: none\nside_effects: [writes_files]\ndepends_on: [s]\n"
        ),
        says=(
            ".agent/skills/s/SKILL.md:5: error: A skill that can pause must store its state, but 'state_persistence' is none [contract_conflict] (Write facts_only or full_events)",
            ".agent/skills/s/SKILL.md:4: error: States paused need a resume, but 'supports_resume' is false [contract_conflict] (Remove the states, or support resuming)",
            ".agent/skills/s/SKILL.md:6: error: Autonomy level 'read' does not allow the side effect 'writes_files' [contract_conflict] (Write autonomy_level: suggest or more)",
            ".agent/skills/s/SKILL.md:7: error: Skill 's' depends on itself [contract_conflict]",
        ),
    ),
    Row(
        name="contract with two failures of one code",
        files=callable_skill(
            "failure_modes: [{code: x}, {code: x}]\nside_effects: {kinds: [network], repeat: often}\n"
        ),
        says=(
            ".agent/skills/s/SKILL.md:4: error: An item of 'failure_modes' repeats the code 'x' [duplicate_code]",
            ".agent/skills/s/SKILL.md:5: error: Field 'repeat' must be 'idempotent', 'keyed' or 'opaque', not 'often' [bad_value]",
        ),
    ),
    Row(
        name="contract that depends on nobody",
        files=callable_skill("depends_on: [nobody]\n"),
        says=(
            ".agent/skills/s/SKILL.md:4: error: Contract field 'depends_on' names the skill 'nobody', which is not there [unknown_skill] (Add the skill, or take the name out)",
        ),
    ),
    Row(
        name="contract that depends on a skill that is not enabled",
        files=callable_skill("depends_on: [schema-infer]\n"),
        says=(
            ".agent/skills/s/SKILL.md:4: error: Contract field 'depends_on' names the skill 'schema-infer', which is not enabled [unusable_skill] (Add 'schema-infer' to AGENT_SKILLS)",
        ),
    ),
    Row(
        name="code that cannot run in a synchronous task",
        files=callable_skill("sync_celery: true\n", BLOCKING),
        says=(
            ".agent/skills/s/impl.py:1: error: Module 'asyncio' needs an event loop [async_import] (Use a blocking library; split concurrent work into several skills)",
            ".agent/skills/s/impl.py:8: error: Function 'other' is async [async_def] (Write a plain function: a turn is one call that returns)",
            ".agent/skills/s/impl.py:9: error: It uses await [await] (Call the blocking form, with a timeout)",
            ".agent/skills/s/impl.py:13: error: threading.Thread is started and never joined [thread_without_join] (Call join() on it before you return)",
            ".agent/skills/s/impl.py:14: error: requests.get can wait forever: it has no timeout [http_without_timeout] (Write get(…, timeout=10))",
            ".agent/skills/s/impl.py:15: warning: httpx.get relies on the default timeout [http_default_timeout] (Write timeout=10)",
            ".agent/skills/s/impl.py:16: warning: subprocess.run waits for a program without a timeout [program_without_timeout] (Write timeout=60)",
            ".agent/skills/s/impl.py:17: error: The started process is never waited for [background_task] (Use subprocess.run(…, timeout=60))",
            ".agent/skills/s/impl.py:18: error: It waits for input at a terminal [waits_for_person] (Return the state 'input_required')",
        ),
    ),
    Row(
        name="code that is not Python",
        files=callable_skill("sync_celery: true\n", "def execute(context:\n"),
        says=(
            ".agent/skills/s/impl.py:1: error: Not readable as Python: '(' was never closed [python_syntax] (Fix the file)",
        ),
    ),
    Row(
        name="code that is not Python and need not be safe in a synchronous task",
        files=callable_skill("sync_celery: false\n", "def execute(context:\n"),
        says=(
            ".agent/skills/s/impl.py:1: error: Not readable as Python: '(' was never closed [python_syntax] (Fix the file)",
        ),
    ),
)
