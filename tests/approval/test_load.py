"""Invalid rules are rejected with their position and a suggestion."""

import pytest
from verdicts import read_problems, read_scope

START = "rules:\n  - tool: Read\n"

WRONG = [
    (
        "ruels: []",
        "1: error: Unknown key 'ruels' [unknown_key] (Known keys: tool_approvals, task_approvals)",
    ),
    (
        "rules: []\nruels: []",
        "2: error: Unknown key 'ruels' [unknown_key] (Did you mean 'rules'?)",
    ),
    (
        "rules: 3",
        "1: error: Field 'rules' must be a list [not_a_list]",
    ),
    (
        "just text",
        "1: error: The list of approvals must be a mapping [not_a_mapping] (Write 'rules:' below it)",
    ),
    (
        "rules:\n  - Read",
        "2: error: A rule must be a mapping [not_a_mapping] (Write '- tool: …' and 'allow: true')",
    ),
    (
        "default: alow\nrules: []",
        "1: error: Field 'default' must be 'approve', 'ask' or 'deny', not 'alow' [bad_value]",
    ),
    (
        "rules:\n  - allow: true",
        "2: error: Field 'tool' is missing [missing_tool]",
    ),
    (
        "rules:\n  - tool: Raed\n    allow: true",
        "2: error: No tool is called 'Raed' [unknown_tool] (Did you mean 'Read'?)",
    ),
    (
        START,
        ("2: error: A rule must have a verdict [missing_verdict] (Add 'allow: true' or 'verdict: ask')"),
    ),
    (
        START + "    allow: yes",
        "3: error: Field 'allow' must be 'true' or 'false', not 'yes' [bad_value]",
    ),
    (
        START + "    verdict: denny",
        ("3: error: Field 'verdict' must be 'allow', 'ask' or 'deny', not 'denny' [bad_value] (Did you mean 'deny'?)"),
    ),
    (
        START + "    allow: true\n    verdict: ask",
        "4: error: A rule has 'allow' or 'verdict', not both [two_verdicts] (Keep one of them)",
    ),
    (
        START + "    allow: true\n    wen: {}",
        "4: error: Unknown key 'wen' [unknown_key] (Did you mean 'when'?)",
    ),
    (
        START + "    allow: true\n    when: [path]",
        "4: error: Field 'when' must be a mapping [not_a_mapping]",
    ),
    (
        START + "    allow: true\n    when:\n      path: a",
        (
            "5: error: What is demanded of 'path' must be a matcher [not_a_matcher] (Write 'equals: …', or "
            "another of equals, in, startsWith, matches, contains, containsAll, anyOf, allOf)"
        ),
    ),
    (
        START + "    allow: true\n    when:\n      path:\n        startWith: a",
        "6: error: Unknown matcher 'startWith' [unknown_matcher] (Did you mean 'startsWith'?)",
    ),
    (
        START + "    allow: true\n    when:\n      path:\n        matches: 'a('",
        (
            "6: error: Expression 'a(' cannot be used: missing ): a( [bad_pattern] (The syntax is that of "
            "RE2, without look-around)"
        ),
    ),
    (
        START + "    allow: true\n    when:\n      path:\n        matches: '(a+)+$'",
        (
            "6: error: Expression '(a+)+$' cannot be used: '(a+)+' repeats a repetition [bad_pattern] (The "
            "syntax is that of RE2, without look-around)"
        ),
    ),
    (
        START + "    allow: true\n    when:\n      path:\n        matches: '(?=a)b'",
        (
            "6: error: Expression '(?=a)b' cannot be used: invalid perl operator: (?= [bad_pattern] (The "
            "syntax is that of RE2, without look-around)"
        ),
    ),
    (
        START + "    allow: true\n    when:\n      path:\n        matches: '(?x) a b'",
        (
            "6: error: Expression '(?x) a b' cannot be used: invalid perl operator: (?x [bad_pattern] (The "
            "syntax is that of RE2, without look-around)"
        ),
    ),
    (
        START + "    allow: true\n    when:\n      path:\n        in: a",
        "6: error: Matcher 'in' needs a list of single values [not_a_list]",
    ),
    (
        START + "    allow: true\n    when:\n      path:\n        equals: [a]",
        "6: error: Matcher 'equals' needs a single value [not_a_scalar]",
    ),
    (
        START + "    allow: true\n    when:\n      path:\n        startsWith: {a: b}",
        "6: error: Matcher 'startsWith' needs a text [not_text]",
    ),
    (
        START + "    allow: true\n    when:\n      path:\n        anyOf: {equals: a}",
        "6: error: Matcher 'anyOf' needs a list of matchers [not_a_list]",
    ),
    (
        START + "    allow: true\n    when:\n      path:\n        anyOf: [{equal: a}]",
        "6: error: Unknown matcher 'equal' [unknown_matcher] (Did you mean 'equals'?)",
    ),
    (
        START + "    allow: true\n    examples: [a]",
        (
            "4: error: Field 'examples' must be a mapping [not_a_mapping] (Write 'allow:', 'ask:' or 'deny:' "
            "and below it a list of arguments)"
        ),
    ),
    (
        START + "    allow: true\n    examples:\n      alow: []",
        "5: error: Unknown key 'alow' [unknown_key] (Did you mean 'allow'?)",
    ),
    (
        START + "    allow: true\n    examples:\n      allow: [a]",
        ("5: error: An example must be a mapping of arguments [not_an_example] (Write it like '{path: src/a.py}')"),
    ),
    (
        "rules:\n  - tool: '*'\n    allow: true\n    examples: {allow: [{}]}",
        (
            "4: error: Examples need a rule for one tool [examples_of_many] (Name the tool in full, or put "
            "the examples into another rule)"
        ),
    ),
    (
        START
        + (
            "    allow: true\n    when: {path: {startsWith: src/}}\n    examples:\n      allow:\n        - "
            "{path: src/../x}"
        ),
        (
            "7: error: Example 1 under 'allow' is judged 'ask' [failed_example] (No rule matches it; correct "
            "the rule or move the example)"
        ),
    ),
    (
        START + "    allow: true\n    examples:\n      deny:\n        - {path: a}",
        (
            "6: error: Example 1 under 'deny' is judged 'allow' [failed_example] (This rule matches it; "
            "correct the rule or move the example)"
        ),
    ),
    (
        START + "    verdict: ask\n  - tool: Read\n    allow: true\n    examples:\n      allow: [{path: a}]",
        (
            "7: error: Example 1 under 'allow' is judged 'ask' [failed_example] (Rule 1 in line 2 matches it "
            "first; correct the rule or move the example)"
        ),
    ),
    (
        (
            "rules:\n  - tool: Bash\n    allow: true\n    when: {command: {startsWith: git}}\n    examples: "
            "{allow: [{command: git push}]}"
        ),
        (
            "5: error: Example 1 under 'allow' is judged 'ask' [failed_example] (This rule matches it; "
            "correct the rule or move the example)"
        ),
    ),
    (
        "rules: [",
        "2: error: YAML syntax error: did not find expected node content [yaml_syntax]",
    ),
]


@pytest.mark.parametrize(("text", "problem"), WRONG)
def test_an_invalid_rule_is_reported_with_its_line(text: str, problem: str) -> None:
    assert read_problems(text) == [f"policy.yaml:{problem}"]


def test_every_problem_is_reported_in_line_order() -> None:
    text = "rules:\n  - tool: Raed\n    allow: true\n  - tool: Write\n    allow: perhaps\n"

    assert [problem.split(": ")[0] for problem in read_problems(text)] == ["policy.yaml:2", "policy.yaml:5"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- tool: Read\n  allow: true\n",
        "rules:\n  - tool: Read\n    allow: true\n",
        "tool_approvals:\n  default: approve\n  rules:\n    - tool: Read\n      verdict: allow\n",
        "tool_approvals: [{tool: server/anything, allow: true}, {tool: notes.search, allow: false}]",
        "task_approvals:\n  rules:\n    - task: release\n      allow: false\n",
        (
            "rules:\n  - tool: Read\n    allow: true\n    when: {path: {matches: 'src(/[a-z]+)*'}}\n    reason: Ours\n"
            "    examples: {allow: [{path: src/a}], ask: [{path: b}, {}]}\n"
        ),
    ],
)
def test_every_form_of_the_file_loads(text: str) -> None:
    read_scope(text)
