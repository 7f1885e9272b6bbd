# ruff: noqa: E501 - a line of the table is a line of the output
"""The table of problems: skills, folders and rules."""

from problem_row import (
    GOOD_SKILL,
    POLICY,
    Row,
    agent,
    dangling,
    deep,
    file_as_folder,
    folder_as_file,
    folder_as_policy,
    leading_out,
    looping,
    rules,
    shared,
    skill,
    task,
)

from metier.version import __version__

ROWS: tuple[Row, ...] = (
    Row(
        name="skill without a description",
        files=skill("name: s\n"),
        says=(".agent/skills/s/SKILL.md:1: error: Field 'description' is missing [missing_description]",),
    ),
    Row(
        name="skill without a name",
        files=skill("description: d\n"),
        says=(".agent/skills/s/SKILL.md:1: error: Field 'name' is missing [missing_name] (Add 'name: s')",),
    ),
    Row(
        name="skill with a wrong name",
        files=skill("name: -Not--Good!\ndescription: d\n"),
        says=(
            ".agent/skills/s/SKILL.md:2: error: Name '-Not--Good!' must be lower case [name_case]",
            ".agent/skills/s/SKILL.md:2: error: Name '-Not--Good!' must not begin or end with a hyphen [name_hyphen]",
            ".agent/skills/s/SKILL.md:2: error: Name '-Not--Good!' must not have two hyphens in a row [name_double_hyphen]",
            ".agent/skills/s/SKILL.md:2: error: Name '-Not--Good!' may only have letters, digits and hyphens [name_characters]",
            ".agent/skills/s/SKILL.md:2: error: Name '-Not--Good!' differs from the folder 's' [name_folder]",
        ),
    ),
    Row(
        name="skill with a long name",
        files={f".agent/skills/{'x' * 65}/SKILL.md": f"---\nname: {'x' * 65}\ndescription: d\n---\n"},
        says=(
            ".agent/skills/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/SKILL.md:2: error: Name has 65 characters, 64 are allowed [name_too_long]",
        ),
    ),
    Row(
        name="skill with a long description",
        files=skill(f"name: s\ndescription: {'x' * 1025}\n"),
        says=(
            ".agent/skills/s/SKILL.md:3: error: Field 'description' has 1025 characters, 1024 are allowed [description_too_long]",
        ),
    ),
    Row(
        name="skill with own fields that do nothing",
        files=skill(GOOD_SKILL + "version: soon\npermissions:\n  env: ['*']\nmax_output_bytes: 0\n"),
        says=(
            ".agent/skills/s/SKILL.md:4: warning: Version 'soon' is not of the form 1.2.3 [version_format] (Updates compare versions; see semver.org)",
            ".agent/skills/s/SKILL.md:6: warning: Pattern '*' of 'permissions.env' matches no variable [broad_pattern] (Write the name of each variable, or 3 letters in front of the wildcard)",
            ".agent/skills/s/SKILL.md:7: error: Field 'max_output_bytes' must be a number above 0, not '0' [bad_limit] (Leave it out to have the host's limit)",
        ),
    ),
    Row(
        name="skill that adds to what it inherits",
        files=skill(GOOD_SKILL + "tools: [inherit, Bash, Read]\nskills: [inherit]\ntasks:\n  - inherit\n  - t\n")
        | {".agent/tasks/t/TASK.md": "---\nname: T\n---\nDo it.\n"},
        says=(
            ".agent/skills/s/SKILL.md:4: warning: Field 'tools' adds 'Bash', 'Read' to 'inherit', which has no effect [idle_addition] (A skill cannot give a run more tools; write 'inherit' alone, or list all tools that it leaves)",
            ".agent/skills/s/SKILL.md:6: warning: Field 'tasks' adds 't' to 'inherit', which has no effect [idle_addition] (A skill cannot give a run more tasks; write 'inherit' alone, or list all tasks that it leaves)",
        ),
    ),
    Row(
        name="skill with a listed script that is missing",
        files=skill(GOOD_SKILL + "scripts: 5\n"),
        says=(
            ".agent/skills/s/SKILL.md:4: error: The folder 'scripts' is missing [missing_script] (Add 'scripts/5.py', or remove it from 'scripts')",
        ),
    ),
    Row(
        name="skill that is a link stored as text",
        files={".agent/skills/s/SKILL.md": "../../x/SKILL.md\n"},
        says=(
            ".agent/skills/s/SKILL.md:1: error: The file is a symbolic link that was stored as text: '../../x/SKILL.md' [link_as_text] (Clone it with `git -c core.symlinks=true clone`, or use the skill that it leads to)",
        ),
    ),
    Row(
        name="skill for another version",
        files=skill(GOOD_SKILL + "max_agent_base_version: 0.0.1\n"),
        says=(
            f".agent/skills/s/SKILL.md:4: error: Skill 's' needs at most version 0.0.1, this is {__version__} [needs_version]",
        ),
    ),
    Row(
        name="skill for a version that is not valid",
        files=skill(GOOD_SKILL + "min_agent_base_version: 0.1.x\n"),
        says=(".agent/skills/s/SKILL.md:4: error: Skill 's' asks for version '0.1.x', which is none [needs_version]",),
    ),
    Row(
        name="skill for a development version of a later release",
        files=skill(GOOD_SKILL + "min_agent_base_version: 99.0.dev1\n"),
        says=(
            f".agent/skills/s/SKILL.md:4: error: Skill 's' needs at least version 99.0.dev1, this is {__version__} [needs_version]",
        ),
    ),
    Row(
        name="skill with a long compatibility",
        files=skill(GOOD_SKILL + f"compatibility: {'x' * 501}\n"),
        says=(
            ".agent/skills/s/SKILL.md:4: error: Field 'compatibility' has 501 characters, 1 to 500 are allowed [compatibility_length]",
        ),
    ),
    Row(
        name="skill whose metadata are text",
        files=skill(GOOD_SKILL + "metadata: x\n"),
        says=(
            ".agent/skills/s/SKILL.md:4: error: Field 'metadata' must be a mapping [metadata_not_mapping] (Write 'key: value' lines below it)",
        ),
    ),
    Row(
        name="skill with nested metadata",
        files=skill(GOOD_SKILL + "metadata:\n  a: [b]\n"),
        says=(
            ".agent/skills/s/SKILL.md:5: warning: Metadata 'a' is nested; other readers of skills take text only [metadata_not_text] (Nothing to do here; write it as one text if the skill is shared)",
        ),
    ),
    Row(
        name="skill that names a script of another one",
        files=skill(GOOD_SKILL, "# S\n\nRun `../other/scripts/x.sh`, then `scripts/../scripts/own.py`.\n"),
        says=(
            ".agent/skills/s/SKILL.md:7: warning: The text names the script '../other/scripts/x.sh', which lies outside of the skill's folder [script_outside] (Put the script into 'scripts/' of this skill; one outside is not run)",
        ),
    ),
    Row(
        name="skill with a list of allowed tools",
        files=skill(GOOD_SKILL + "allowed-tools: [Read]\n"),
        says=(
            ".agent/skills/s/SKILL.md:4: error: Field 'allowed-tools' must be text [allowed_tools_list] (Write the tools in one line, separated by spaces)",
        ),
    ),
    Row(
        name="skill with an unknown field",
        files=skill(GOOD_SKILL + "licence: x\n"),
        says=(
            ".agent/skills/s/SKILL.md:4: warning: Field 'licence' is not part of the Agent Skills specification [unknown_field] (Did you mean 'license'?)",
        ),
    ),
    Row(
        name="skill with wrong permissions",
        files=skill(GOOD_SKILL + "permissions: [a]\n"),
        says=(
            ".agent/skills/s/SKILL.md:4: error: Field 'permissions' must have the key 'env' [permissions] (Write the names under 'permissions: env:')",
        ),
    ),
    Row(
        name="skill with a wrong entrypoint",
        files=skill(GOOD_SKILL + "entrypoint: [a]\n"),
        says=(
            ".agent/skills/s/SKILL.md:4: error: Field 'entrypoint' must name a script [entrypoint] (Write 'entrypoint: script argument …', or 'script:' and 'args:' below it)",
        ),
    ),
    Row(
        name="skill whose entrypoint is not there",
        files={**skill(GOOD_SKILL + "entrypoint:\n  script: cont\n"), ".agent/skills/s/scripts/count.py": ""},
        says=(
            ".agent/skills/s/SKILL.md:4: error: The entrypoint names the script 'cont', which the skill does not have [missing_script] (Did you mean 'count.py'?)",
        ),
    ),
    Row(
        name="skill whose contract has wrong values",
        files=skill(
            GOOD_SKILL
            + "execution_mode: soon\ninteraction_outcomes: [maybe]\ninput_schema: {type: thing}\ncontract:\n  tpye: x\n  failure_modes: [x]\n"
        ),
        says=(
            ".agent/skills/s/SKILL.md:4: warning: Field 'execution_mode' must be 'deterministic', 'hybrid' or 'advisor_only', not 'soon' [bad_value]",
            ".agent/skills/s/SKILL.md:5: warning: Field 'interaction_outcomes' must be a mapping [not_a_mapping]",
            ".agent/skills/s/SKILL.md:6: warning: Field 'input_schema' is not a usable JSON Schema: 'thing' is not valid under any of the given schemas (at $.type) [contract_schema]",
            ".agent/skills/s/SKILL.md:8: warning: Unknown key 'tpye' [unknown_key] (Known keys: interaction_outcomes, state_persistence, input_request_jsonschema, input_schema, output_schema, execution_mode, autonomy_level, side_effects, timeout_seconds, max_fix_iterations, required_artifacts, failure_modes, depends_on, sync_celery)",
        ),
    ),
    Row(
        name="skill whose code has no execute",
        files={**skill(GOOD_SKILL), ".agent/skills/s/impl.py": "x = 1\n"},
        says=(
            ".agent/skills/s/impl.py:1: error: 'impl.py' has no function 'execute' [impl_without_execute] (Write `def execute(context):` and return a mapping)",
        ),
    ),
    Row(
        name="skill file in another case",
        files={".agent/skills/s/Skill.md": "---\nname: s\ndescription: d\n---\n"},
        says=(".agent/skills/s/Skill.md:1: error: The file is called 'Skill.md', not 'SKILL.md' [file_name]",),
    ),
    Row(
        name="link to nothing",
        prepare=dangling,
        says=(".agent/agents/a/AGENT.md:1: error: 'AGENT.md' is a broken link [dangling_link]",),
    ),
    Row(
        name="folder that should be a file",
        prepare=folder_as_file,
        says=(".agent/agents/a/AGENT.md:1: error: 'AGENT.md' is not a file [not_a_file]",),
    ),
    Row(
        name="a link out of the project",
        prepare=leading_out,
        says=(".agent/agents/out:1: error: Link 'out' leads out of the project and is not followed [link_out]",),
    ),
    Row(
        name="link that leads back",
        prepare=looping,
        says=(".agent/agents/a/back:1: warning: Link 'back' leads to a folder that is read already [link_loop]",),
    ),
    Row(
        name="folders too deep",
        prepare=deep,
        says=(
            ".agent/agents/a/b/c/d/e/f/g/h/i/j/k/l:1: warning: Folders deeper than 12 levels are not read [too_deep]",
        ),
    ),
    Row(
        name="file that should be a folder",
        prepare=file_as_folder,
        says=(".agent/agents:1: error: The folder cannot be read: Not a directory [unreadable]",),
    ),
    Row(
        name="unknown tool in a rule",
        files=rules("    - tool: Wriet\n      allow: true\n"),
        says=(".agent/policy.yaml:3: error: No tool is called 'Wriet' [unknown_tool] (Did you mean 'Write'?)",),
    ),
    Row(
        name="unknown task in a rule",
        files={**task(""), **agent("task_approvals:\n  - {task: tt, allow: true}\n")},
        says=(".agent/agents/a/AGENT.md:4: error: No task is called 'tt' [unknown_task] (Did you mean 't'?)",),
    ),
    Row(
        name="unknown key in a rule",
        files=agent("tool_approvals:\n  - tool: Read\n    allow: true\n    wen: {}\n"),
        says=(".agent/agents/a/AGENT.md:6: error: Unknown key 'wen' [unknown_key] (Did you mean 'when'?)",),
    ),
    Row(
        name="unknown matcher",
        files=rules("    - tool: Read\n      allow: true\n      when:\n        path:\n          startWith: x\n"),
        says=(
            ".agent/policy.yaml:7: error: Unknown matcher 'startWith' [unknown_matcher] (Did you mean 'startsWith'?)",
        ),
    ),
    Row(
        name="what is demanded is no matcher",
        files=rules("    - tool: Read\n      allow: true\n      when: {path: x}\n"),
        says=(
            ".agent/policy.yaml:5: error: What is demanded of 'path' must be a matcher [not_a_matcher] (Write 'equals: …', or another of equals, in, startsWith, matches, contains, containsAll, anyOf, allOf)",
        ),
    ),
    Row(
        name="pattern that cannot be used",
        files=rules("    - tool: Read\n      allow: true\n      when: {path: {matches: '(?=x)'}}\n"),
        says=(
            ".agent/policy.yaml:5: error: Expression '(?=x)' cannot be used: invalid perl operator: (?= [bad_pattern] (The syntax is that of RE2, without look-around)",
        ),
    ),
    Row(
        name="matchers with a wrong operand",
        files=rules(
            "    - tool: Read\n      allow: true\n      when: {path: {equals: [a], in: b, startsWith: [c], anyOf: d}}\n"
        ),
        says=(
            ".agent/policy.yaml:5: error: Matcher 'equals' needs a single value [not_a_scalar]",
            ".agent/policy.yaml:5: error: Matcher 'in' needs a list of single values [not_a_list]",
            ".agent/policy.yaml:5: error: Matcher 'startsWith' needs a text [not_text]",
            ".agent/policy.yaml:5: error: Matcher 'anyOf' needs a list of matchers [not_a_list]",
        ),
    ),
    Row(
        name="rule without a tool",
        files=rules("    - allow: true\n"),
        says=(".agent/policy.yaml:3: error: Field 'tool' is missing [missing_tool]",),
    ),
    Row(
        name="rule for a task without a task",
        files=agent("task_approvals:\n  - allow: true\n"),
        says=(".agent/agents/a/AGENT.md:4: error: Field 'task' is missing [missing_task]",),
    ),
    Row(
        name="rule without a verdict",
        files=rules("    - tool: Read\n"),
        says=(
            ".agent/policy.yaml:3: error: A rule must have a verdict [missing_verdict] (Add 'allow: true' or 'verdict: ask')",
        ),
    ),
    Row(
        name="rule with two verdicts",
        files=rules("    - tool: Read\n      allow: true\n      verdict: ask\n"),
        says=(
            ".agent/policy.yaml:5: error: A rule has 'allow' or 'verdict', not both [two_verdicts] (Keep one of them)",
        ),
    ),
    Row(
        name="unknown verdict",
        files=rules("    - tool: Read\n      verdict: aks\n"),
        says=(
            ".agent/policy.yaml:4: error: Field 'verdict' must be 'allow', 'ask' or 'deny', not 'aks' [bad_value] (Did you mean 'ask'?)",
        ),
    ),
    Row(
        name="unknown default",
        files={POLICY: "tool_approvals:\n  default: allow\n"},
        says=(
            ".agent/policy.yaml:2: error: Field 'default' must be 'approve', 'ask' or 'deny', not 'allow' [bad_value]",
        ),
    ),
    Row(
        name="rules that are text",
        files=agent("tool_approvals: x\n"),
        says=(
            ".agent/agents/a/AGENT.md:3: error: The list of approvals must be a mapping [not_a_mapping] (Write 'rules:' below it)",
        ),
    ),
    Row(
        name="rules that are no list",
        files={POLICY: "tool_approvals:\n  rules: x\n"},
        says=(".agent/policy.yaml:2: error: Field 'rules' must be a list [not_a_list]",),
    ),
    Row(
        name="rule that is text",
        files=rules("    - x\n"),
        says=(
            ".agent/policy.yaml:3: error: A rule must be a mapping [not_a_mapping] (Write '- tool: …' and 'allow: true')",
        ),
    ),
    Row(
        name="conditions and examples that are text",
        files=rules("    - tool: Read\n      allow: true\n      when: x\n      examples: y\n"),
        says=(
            ".agent/policy.yaml:5: error: Field 'when' must be a mapping [not_a_mapping]",
            ".agent/policy.yaml:6: error: Field 'examples' must be a mapping [not_a_mapping] (Write 'allow:', 'ask:' or 'deny:' and below it a list of arguments)",
        ),
    ),
    Row(
        name="example that is judged otherwise",
        files=agent(
            "tool_approvals:\n  - tool: Write\n    allow: true\n    when: {path: {startsWith: docs/}}\n    examples:\n      allow: [{path: src/a.py}]\n"
        ),
        says=(
            ".agent/agents/a/AGENT.md:8: error: Example 1 under 'allow' is judged 'ask' [failed_example] (No rule matches it; correct the rule or move the example)",
        ),
    ),
    Row(
        name="example that is text",
        files=rules("    - tool: Read\n      allow: true\n      examples: {allow: [x]}\n"),
        says=(
            ".agent/policy.yaml:5: error: An example must be a mapping of arguments [not_an_example] (Write it like '{path: src/a.py}')",
        ),
    ),
    Row(
        name="examples of many tools",
        files=rules("    - tool: web*\n      allow: true\n      examples: {allow: [{path: x}]}\n"),
        says=(
            ".agent/policy.yaml:5: error: Examples need a rule for one tool [examples_of_many] (Name the tool in full, or put the examples into another rule)",
        ),
    ),
    Row(
        name="rules of a skill and of a step",
        files={
            **skill(GOOD_SKILL + "tool_approvals:\n  - {tool: Raed, allow: true}\n"),
            **task("next: two.md\n", two="---\ntool_approvals:\n  - {tool: Bahs, allow: true}\n---\n"),
        },
        says=(
            ".agent/tasks/t/two.md:3: error: No tool is called 'Bahs' [unknown_tool] (Did you mean 'Bash'?)",
            ".agent/skills/s/SKILL.md:5: error: No tool is called 'Raed' [unknown_tool] (Did you mean 'Read'?)",
        ),
    ),
    Row(
        name="rules of a shared skill",
        files=shared("---\nname: s\ndescription: d\ntool_approvals:\n  - {tool: Raed, allow: true}\n---\n"),
        says=(".claude/skills/s/SKILL.md:5: error: No tool is called 'Raed' [unknown_tool] (Did you mean 'Read'?)",),
    ),
    Row(
        name="policy that is a folder",
        prepare=folder_as_policy,
        says=(
            ".agent/policy.yaml:1: error: The policy '.agent/policy.yaml' cannot be used: The file cannot be read: Is a directory [unreadable]",
        ),
    ),
)
