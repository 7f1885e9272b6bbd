# ruff: noqa: E501 - a line of the table is a line of the output
"""The table of problems: agents and tasks."""

from problem_row import AGENT, GOOD_SKILL, POLICY, TASK, Row, agent, linked_step, servers, shared, skill, task

ROWS: tuple[Row, ...] = (
    Row(
        name="yaml syntax",
        files=agent("tools: [Read\n"),
        says=(".agent/agents/a/AGENT.md:4: error: YAML syntax error: did not find expected ',' or ']' [yaml_syntax]",),
    ),
    Row(
        name="yaml alias",
        files=agent("tools: *x\n"),
        says=(".agent/agents/a/AGENT.md:3: error: Alias 'x' names no anchor before it [yaml_alias]",),
    ),
    Row(
        name="yaml that means more than it says",
        files=agent("model: &m x\ndescription: !!str y\n<<: {a: b}\n"),
        says=(
            ".agent/agents/a/AGENT.md:3: error: Anchor '&m' is not supported [yaml_anchor] (Write the value out where it is used)",
            ".agent/agents/a/AGENT.md:4: error: Tag '!!str' is not supported: every value is text [yaml_tag] (Remove the tag)",
            ".agent/agents/a/AGENT.md:5: error: The merge key '<<' is not supported [yaml_merge_key] (Write the fields out)",
            ".agent/agents/a/AGENT.md:5: error: Unknown key '<<' [unknown_key] (Known keys: name, description, metadata, model, allowed_models, temperature, max_tokens, tools, tool_approvals, skills, tasks, task_approvals, profile, web)",
        ),
    ),
    Row(
        name="model that is a number",
        files=agent("model: 5\n"),
        says=(
            ".agent/agents/a/AGENT.md:3: error: Field 'model' is '5', which cannot be the name of a model [not_a_model] (Write the name as the provider has it, for example 'claude-sonnet-4-5')",
        ),
    ),
    Row(
        name="rule for a tool that the agent does not have",
        files=agent(
            "tools: [Read]\ntool_approvals:\n  rules:\n    - {tool: Read, allow: true}\n    - {tool: Write, allow: false}\n"
        ),
        says=(
            ".agent/agents/a/AGENT.md:7: warning: Rule 2 is about 'Write', which is not among the tools, so it has no effect [idle_rule] (Add it to 'tools', or take the rule out)",
        ),
    ),
    Row(
        name="rules beside a list that takes over what surrounds it",
        files=agent("tools: [inherit, Read]\ntool_approvals:\n  rules:\n    - {tool: Write, allow: false}\n"),
        says=(),
    ),
    Row(
        name="skill that leaves none of the agent's tools",
        files={**agent("tools: [Read]\nskills: [s]\n"), **skill(f"{GOOD_SKILL}tools: [Grep]\n")},
        says=(
            ".agent/agents/a/AGENT.md:4: warning: While skill 's' is in charge no tool is left: it lists Grep, and the agent has Read [no_tools_left] (Name a tool in both lists, or write 'inherit' in that of the skill)",
        ),
    ),
    Row(
        name="task without a text",
        files=task("", ""),
        says=(
            ".agent/tasks/t/TASK.md:4: warning: The task has no text, so the model is told nothing but its name [empty_body] (Say below the front matter what is to be done)",
        ),
    ),
    Row(
        name="folder of a task without its file",
        files={".agent/tasks/t/first.md": "Do it.\n"},
        says=(
            ".agent/tasks/t: warning: The folder has no 'TASK.md', so nothing in it is read [no_definition] (Name its first file 'TASK.md')",
        ),
    ),
    Row(
        name="skill in the folder that the settings name",
        files={"agent.yaml": "skills:\n  dir: more\n", "more/s/SKILL.md": "---\nname: s\n---\n"},
        says=("more/s/SKILL.md:1: error: Field 'description' is missing [missing_description]",),
    ),
    Row(
        name="yaml directive",
        files={POLICY: "%YAML 1.1\n---\ntool_approvals:\n  rules: []\n"},
        says=(".agent/policy.yaml:1: error: A YAML directive has no effect here [yaml_directive] (Remove the line)",),
    ),
    Row(
        name="hidden characters",
        files=agent('description: "a\\u202eb"\n'),
        says=(
            ".agent/agents/a/AGENT.md:3: warning: Field 'description' holds hidden or control characters, first U+202E; they are made visible [hidden_characters] (Remove them)",
        ),
    ),
    Row(
        name="yaml key",
        files=agent("? [a]\n: b\n"),
        says=(".agent/agents/a/AGENT.md:3: error: A key must be plain text [yaml_key]",),
    ),
    Row(
        name="yaml of two documents",
        files={POLICY: "a: 1\n---\nb: 2\n"},
        says=(".agent/policy.yaml:2: error: The YAML has more than one document [yaml_many_documents]",),
    ),
    Row(
        name="yaml too deep",
        files=agent("metadata: " + "[" * 25 + "]" * 25 + "\n"),
        says=(".agent/agents/a/AGENT.md:3: error: The YAML is nested deeper than 20 levels [yaml_too_deep]",),
    ),
    Row(
        name="yaml too large",
        files={POLICY: "# " + "x" * 70_000 + "\n"},
        says=(".agent/policy.yaml:1: error: The YAML is larger than 65536 bytes [yaml_too_large]",),
    ),
    Row(
        name="yaml with too many values",
        files=agent("metadata: [" + "1, " * 10_001 + "1]\n"),
        says=(
            ".agent/agents/a/AGENT.md:3: error: The YAML has more than 10000 values [yaml_too_many_nodes] (Write the value out, or split the file)",
        ),
    ),
    Row(
        name="duplicate key, and what is wrong beside it",
        files=agent("model: x\nmodel: y\ntols: [Read]\n"),
        says=(
            ".agent/agents/a/AGENT.md:4: error: Key 'model' is repeated; it is first in line 3 [duplicate_key] (Keep one of them)",
            ".agent/agents/a/AGENT.md:5: error: Unknown key 'tols' [unknown_key] (Did you mean 'tools'?)",
        ),
    ),
    Row(
        name="empty file",
        files={AGENT: ""},
        says=(".agent/agents/a/AGENT.md:1: error: The file is empty [empty_file]",),
    ),
    Row(
        name="no front matter",
        files={AGENT: "Hello\n"},
        says=(
            ".agent/agents/a/AGENT.md:1: error: The file has no front matter [no_front_matter] (Begin the file with a line '---', the fields, and a line '---')",
        ),
    ),
    Row(
        name="front matter without an end",
        files={AGENT: "---\nname: A\n"},
        says=(
            ".agent/agents/a/AGENT.md:1: error: The front matter has no end [unclosed_front_matter] (End the front matter with a line '---')",
        ),
    ),
    Row(
        name="front matter that begins late",
        files={AGENT: "\n\n---\nname: A\n---\n"},
        says=(".agent/agents/a/AGENT.md:3: error: The file must begin with a line '---' [late_front_matter]",),
    ),
    Row(
        name="front matter without a field",
        files={AGENT: "---\n---\n"},
        says=(".agent/agents/a/AGENT.md:2: error: The front matter has no fields [empty_front_matter]",),
    ),
    Row(
        name="front matter that is a list",
        files={AGENT: "---\n- a\n---\n"},
        says=(
            ".agent/agents/a/AGENT.md:2: error: The front matter is not a mapping [not_a_mapping] (Write one 'key: value' in each line)",
        ),
    ),
    Row(
        name="byte order mark",
        files={AGENT: b"\xef\xbb\xbf---\nname: A\n---\n"},
        says=(".agent/agents/a/AGENT.md:1: warning: The file begins with a byte order mark [byte_order_mark]",),
    ),
    Row(
        name="not UTF-8",
        files={AGENT: b"---\nname: \xe9\n---\n"},
        says=(".agent/agents/a/AGENT.md:2: error: Byte 0xe9 is not UTF-8 [not_utf8]",),
    ),
    Row(
        name="control character",
        files={AGENT: "---\nname: A\x01\n---\n"},
        says=(".agent/agents/a/AGENT.md:2: error: Control character U+0001 in the front matter [control_character]",),
    ),
    Row(
        name="file too large",
        files={AGENT: "x" * (4 * 1024 * 1024 + 1)},
        says=(".agent/agents/a/AGENT.md:1: error: The file is larger than 4194304 bytes [file_too_large]",),
    ),
    Row(
        name="shared skill that was repaired",
        files=shared("---\nname: s\ndescription: Use: it\n---\n"),
        says=(
            ".claude/skills/s/SKILL.md:3: warning: Field 'description' is not YAML and was read as plain text [yaml_repaired] (Put the value in quotes)",
        ),
    ),
    Row(
        name="shared skill with tabs",
        files=shared("---\nname: s\ndescription: d\nmetadata:\n\ta: b\n---\n"),
        says=(".claude/skills/s/SKILL.md:4: warning: Tabs indent this field [tab_indent]",),
    ),
    Row(
        name="unknown key",
        files=agent("modle: x\n"),
        says=(".agent/agents/a/AGENT.md:3: error: Unknown key 'modle' [unknown_key] (Did you mean 'model'?)",),
    ),
    Row(
        name="missing name",
        files={AGENT: "---\ndescription: d\n---\n"},
        says=(".agent/agents/a/AGENT.md:1: error: Field 'name' is missing [missing_name]",),
    ),
    Row(
        name="text that is a list",
        files=agent("model: [a, b]\n"),
        says=(".agent/agents/a/AGENT.md:3: error: Field 'model' must be text [not_text] (Write it as one value)",),
    ),
    Row(
        name="list that is a mapping",
        files=agent("tools: {a: b}\n"),
        says=(".agent/agents/a/AGENT.md:3: error: Field 'tools' must be a list [not_a_list]",),
    ),
    Row(
        name="mapping that is text",
        files=agent("metadata: x\n"),
        says=(".agent/agents/a/AGENT.md:3: error: Field 'metadata' must be a mapping [not_a_mapping]",),
    ),
    Row(
        name="not a number",
        files=agent("temperature: hot\nmax_tokens: 0\n"),
        says=(
            ".agent/agents/a/AGENT.md:3: error: Field 'temperature' must be a number from 0 to 2 [bad_value]",
            ".agent/agents/a/AGENT.md:4: error: Field 'max_tokens' must be a whole number from 1 to 1e+07 [bad_value]",
        ),
    ),
    Row(
        name="unknown profile",
        files=agent("profile: gaurded\n"),
        says=(
            ".agent/agents/a/AGENT.md:3: error: Field 'profile' must be 'permissive', 'guarded' or 'strict', not 'gaurded' [bad_value] (Did you mean 'guarded'?)",
        ),
    ),
    Row(
        name="web that is a list",
        files=agent("web: [a]\n"),
        says=(
            ".agent/agents/a/AGENT.md:3: error: Field 'web' must be a mapping [not_a_mapping] (Write 'allow:' or 'deny:' below it, each with a list of domains)",
        ),
    ),
    Row(
        name="no domain",
        files=agent("web:\n  allow: ['https://a.example']\n"),
        says=(
            ".agent/agents/a/AGENT.md:4: error: 'https://a.example' is not a domain [not_a_domain] (Write it like 'example.com', without scheme, port, path or '*'; subdomains are included)",
        ),
    ),
    Row(
        name="no domains",
        files=agent("web:\n  allow: []\n"),
        says=(
            ".agent/agents/a/AGENT.md:4: error: An empty list allows every domain [empty_domains] (Leave 'allow' out, or leave 'WebFetch' out of tools)",
        ),
    ),
    Row(
        name="unknown skill",
        files=agent("skills: [workspace-inventry]\n"),
        says=(
            ".agent/agents/a/AGENT.md:3: error: No skill is called 'workspace-inventry' [unknown_skill] (Did you mean 'workspace-inventory'?)",
        ),
    ),
    Row(
        name="unknown task and agent",
        files={**task("agent: bob\n"), **agent("tasks: [tt]\n")},
        says=(
            ".agent/agents/a/AGENT.md:3: error: No task is called 'tt' [unknown_task] (Did you mean 't'?)",
            ".agent/tasks/t/TASK.md:3: error: No agent is called 'bob' [unknown_agent] (Add the agent, or take the name out)",
        ),
    ),
    Row(
        name="IDs that differ in case",
        files={AGENT: "---\nname: A\n---\n", ".agent/agents/A/AGENT.md": "---\nname: B\n---\n"},
        says=(
            ".agent/agents/a/AGENT.md:1: error: ID 'a' is the same as that of '.agent/agents/A/AGENT.md' where case does not count [duplicate_id] (Rename one of the folders)",
        ),
    ),
    Row(
        name="IDs that differ in Unicode form",
        files={
            ".agent/tasks/caf\u00e9/TASK.md": "---\nname: A\n---\nDo it.\n",
            ".agent/tasks/cafe\u0301/TASK.md": "---\nname: B\n---\nDo it.\n",
        },
        says=(
            ".agent/tasks/café/TASK.md:1: error: ID 'café' is the same as that of '.agent/tasks/café/TASK.md' where case does not count [duplicate_id] (Rename one of the folders)",
        ),
    ),
    Row(
        name="one ID in two folders",
        files={TASK: "---\nname: A\n---\nDo it.\n", ".nanobot/tasks/T/TASK.md": "---\nname: B\n---\nDo it.\n"},
        says=(
            ".nanobot/tasks/T/TASK.md:1: error: ID 'T' is the same as that of '.agent/tasks/t/TASK.md' where case does not count [duplicate_id] (Rename one of the folders)",
        ),
    ),
    Row(
        name="unknown tool in an agent",
        files=agent("tools:\n  - inherit\n  - Raed\n  - finish\n  - Bash\n"),
        says=(".agent/agents/a/AGENT.md:5: error: No tool is called 'Raed' [unknown_tool] (Did you mean 'Read'?)",),
    ),
    Row(
        name="unknown tool in a step",
        files=task("next: two.md\n", two="---\ntools: [Grab]\n---\n"),
        says=(
            ".agent/tasks/t/two.md:2: error: No tool is called 'Grab' [unknown_tool] (Add the tool, or take the name out)",
        ),
    ),
    Row(
        name="unknown tool in a skill",
        files=skill(GOOD_SKILL + "tools: [Wrte]\n"),
        says=(".agent/skills/s/SKILL.md:4: error: No tool is called 'Wrte' [unknown_tool] (Did you mean 'Write'?)",),
    ),
    Row(
        name="tool of a server that is not configured",
        files={
            **agent("tools: [githib/search, github/search]\n"),
            **servers('{"mcpServers": {"github": {"command": "x"}}}'),
        },
        says=(
            ".agent/agents/a/AGENT.md:3: error: No MCP server is called 'githib' [unknown_tool] (Did you mean 'github'?)",
        ),
    ),
    Row(
        name="tool of a server where none is configured",
        files=agent("tools: [github/search]\n"),
        says=(
            ".agent/agents/a/AGENT.md:3: error: No MCP server is called 'github' [unknown_tool] (Add it to '.agent/mcp.json', or take the name out)",
        ),
    ),
    Row(
        name="tool of a skill that is not there",
        files=agent("tools: [nots.add]\n"),
        says=(
            ".agent/agents/a/AGENT.md:3: error: No skill is called 'nots', so it has no tool [unknown_tool] (Add the skill, or take the name out)",
        ),
    ),
    Row(
        name="tool that a toolset may bring",
        files=agent("tools: [greet]\nskills: [hello-extended]\n"),
        says=(
            ".agent/agents/a/AGENT.md:3: warning: No tool is called 'greet' [unknown_tool] (Add the tool, or take the name out, unless a toolset brings it)",
        ),
    ),
    Row(
        name="model that the host does not allow",
        files={
            **agent("model: gpt-5\nallowed_models: [claude-sonnet-4-5, other]\n"),
            "agent.yaml": "model:\n  allowed_models: [claude-sonnet-4-5]\n",
        },
        says=(
            ".agent/agents/a/AGENT.md:3: error: Model 'gpt-5' is not allowed here [model_not_allowed] (model.allowed_models has claude-sonnet-4-5)",
            ".agent/agents/a/AGENT.md:4: warning: Model 'other' has no effect [model_not_allowed] (model.allowed_models has claude-sonnet-4-5)",
        ),
    ),
    Row(
        name="next that is missing",
        files=task("next: two.md\n"),
        says=(
            ".agent/tasks/t/TASK.md:3: error: Next step 'two.md' does not exist [next_missing] (Name a Markdown file next to this one)",
        ),
    ),
    Row(
        name="next that goes round",
        files=task("next: two.md\n", two="---\nnext: TASK.md\n---\n"),
        says=(
            ".agent/tasks/t/two.md:2: error: Next step 'TASK.md' was a step already [next_cycle] (Name a Markdown file next to this one)",
        ),
    ),
    Row(
        name="next outside of the folder",
        files=task("next: ../x.md\n"),
        says=(
            ".agent/tasks/t/TASK.md:3: error: Next step '../x.md' is not a Markdown file of the same folder [next_outside] (Name a Markdown file next to this one)",
        ),
    ),
    Row(
        name="next that is a link",
        files=task("next: two.md\n"),
        prepare=linked_step,
        says=(
            ".agent/tasks/t/TASK.md:3: error: Next step 'two.md' is a link [next_outside] (Name a Markdown file next to this one)",
        ),
    ),
    Row(
        name="too many steps",
        files=task("next: s1.md\n", **{f"s{n}": f"---\nnext: s{n + 1}.md\n---\n" for n in range(1, 101)}),
        says=(
            ".agent/tasks/t/s99.md:2: error: The task has more than 100 steps [next_too_many] (Name a Markdown file next to this one)",
        ),
    ),
    Row(
        name="inputs in a later step",
        files=task("next: two.md\n", two="---\ninputs:\n  - name: x\n---\n"),
        says=(
            ".agent/tasks/t/two.md:2: error: Field 'inputs' is allowed only in 'TASK.md' [inputs_in_step] (Move it to 'TASK.md')",
        ),
    ),
    Row(
        name="inputs that are no list",
        files=task("inputs: x\n"),
        says=(
            ".agent/tasks/t/TASK.md:3: error: Field 'inputs' must be a list [not_a_list] (Write one '- name: …' for each)",
        ),
    ),
    Row(
        name="input that is no mapping",
        files=task("inputs: [x]\n"),
        says=(
            ".agent/tasks/t/TASK.md:3: error: An input must be a mapping [not_a_mapping] (Write '- name: …' and below it 'description: …')",
        ),
    ),
    Row(
        name="input with a wrong name",
        files=task("inputs:\n  - name: a b\n"),
        says=(
            ".agent/tasks/t/TASK.md:4: error: Field 'name' is 'a b'; it must be letters, digits, hyphens and underscores [input]",
        ),
    ),
    Row(
        name="input that stands twice",
        files=task("inputs:\n  - name: a\n  - name: a\n"),
        says=(".agent/tasks/t/TASK.md:5: error: Input 'a' is repeated [duplicate_input]",),
    ),
    Row(
        name="default that its schema forbids",
        files=task("inputs:\n  - name: count\n    default: many\n    schema: {type: integer}\n", "{{inputs.count}}\n"),
        says=(
            ".agent/tasks/t/TASK.md:6: error: The default of input 'count' is not what its schema says [input_default] ('many' is not of type 'integer' (at $))",
        ),
    ),
    Row(
        name="front matter indented with a tab",
        files=task("inputs:\n\t- name: topic\n"),
        says=(
            ".agent/tasks/t/TASK.md:4: error: YAML syntax error: found character that cannot start any token [yaml_syntax] (Indent with spaces instead of tabs, and quote values like '@name')",
        ),
    ),
    Row(
        name="value with a colon",
        files=task("description: Summary: short\n"),
        says=(
            ".agent/tasks/t/TASK.md:3: error: YAML syntax error: mapping values are not allowed in this context [yaml_syntax] (Quote a value that contains ': ', or correct the indentation)",
        ),
    ),
    Row(
        name="schema that is none",
        files=task("output_schema: {type: thing}\n"),
        says=(
            ".agent/tasks/t/TASK.md:3: error: Field 'output_schema' is not a JSON Schema: 'thing' is not valid under any of the given schemas [schema]",
        ),
    ),
    Row(
        name="schema with a pattern that cannot be matched in linear time",
        files=task('output_schema: {pattern: "(?=a)b"}\n'),
        says=(
            ".agent/tasks/t/TASK.md:3: error: Field 'output_schema' is not a JSON Schema: the pattern '(?=a)b' cannot be used: invalid perl operator: (?= (patterns are matched with RE2, which has no lookaround and no backreferences) [schema]",
        ),
    ),
    Row(
        name="schema that is text",
        files=task("output_schema: object\n"),
        says=(
            ".agent/tasks/t/TASK.md:3: error: Field 'output_schema' must be a JSON Schema [not_a_mapping] (Write 'type: …' below it)",
        ),
    ),
    Row(
        name="input that no text names",
        files=task("inputs:\n  - name: topic\n"),
        says=(
            ".agent/tasks/t/TASK.md:1: warning: Input 'topic' is in no body of the task [unused_input] (Write {{inputs.topic}} where it is meant; the model sees it among the inputs either way)",
        ),
    ),
    Row(
        name="placeholder for an unknown input",
        files=task("inputs:\n  - name: topic\n", "\nAbout {{inputs.topc}}.\n"),
        says=(".agent/tasks/t/TASK.md:7: error: Input 'topc' is not declared [unknown_input] (Did you mean 'topic'?)",),
    ),
    Row(
        name="placeholder for an unknown step",
        files=task("", "{{steps.two.result}}\n"),
        says=(
            ".agent/tasks/t/TASK.md:4: error: The task has no step 'two' [unknown_step] (Name the file of an earlier step)",
        ),
    ),
    Row(
        name="placeholder that is misspelt",
        files=task("", "{{input.x}}\n"),
        says=(
            ".agent/tasks/t/TASK.md:4: error: '{{input.x}}' is no placeholder [placeholder] (Write {{inputs.NAME}} or {{steps.FILE.result}})",
        ),
    ),
    Row(
        name="placeholder without its kind",
        files=task("inputs:\n  - name: title\n", "Write about {{title}}.\n\nUse {{ titel }} and ${{ title }}.\n"),
        says=(
            ".agent/tasks/t/TASK.md:6: error: '{{title}}' is not a placeholder, so the model reads it literally [placeholder] (Did you mean {{inputs.title}}?)",
            ".agent/tasks/t/TASK.md:8: warning: '{{ titel }}' is not a placeholder, so the model reads it literally [placeholder] (Did you mean {{inputs.title}}?)",
        ),
    ),
    Row(
        name="placeholder of a step without its kind",
        files=task("next: two.md\n", two="---\nname: Two\n---\nContinue with {{TASK.result}}.\n"),
        says=(
            ".agent/tasks/t/two.md:4: error: '{{TASK.result}}' is not a placeholder, so the model reads it literally [placeholder] (Did you mean {{steps.TASK.result}}?)",
        ),
    ),
    Row(
        name="name in double braces that resembles no input",
        files=task("inputs:\n  - name: topic\n", "Write a template with {{year}} about {{inputs.topic}}.\n"),
        says=(
            ".agent/tasks/t/TASK.md:6: warning: '{{year}}' is not a placeholder, so the model reads it literally [placeholder] (Write {{inputs.NAME}} or {{steps.FILE.result}})",
        ),
    ),
    Row(
        name="placeholder with a capital",
        files=task("inputs:\n  - name: topic\n", "{{Inputs.topic}}\n"),
        says=(
            ".agent/tasks/t/TASK.md:6: error: '{{Inputs.topic}}' is no placeholder [placeholder] (Write {{inputs.NAME}} or {{steps.FILE.result}})",
        ),
    ),
    Row(
        name="placeholder in a task with another problem",
        files=task("modle: x\n", "{{inputs.x}}\n"),
        says=(
            ".agent/tasks/t/TASK.md:3: error: Unknown key 'modle' [unknown_key] (Known keys: name, description, metadata, agent, tools, tool_approvals, skills, tasks, task_approvals, inputs, next, output_schema, acceptance)",
            ".agent/tasks/t/TASK.md:5: error: Input 'x' is not declared [unknown_input] (Declare it under 'inputs' in 'TASK.md')",
        ),
    ),
    Row(
        name="criteria that are no list",
        files=task("acceptance: x\n"),
        says=(".agent/tasks/t/TASK.md:3: error: Field 'acceptance' must be a list [not_a_list]",),
    ),
    Row(
        name="criterion that says nothing",
        files=task("acceptance:\n  - {contains: x}\n  - [a]\n  - {fil: x}\n"),
        says=(
            ".agent/tasks/t/TASK.md:4: error: An item of 'acceptance' must have 'file', 'command' or 'text' [criterion]",
            ".agent/tasks/t/TASK.md:5: error: An item of 'acceptance' must be a mapping [not_a_mapping]",
            ".agent/tasks/t/TASK.md:6: error: Unknown key 'fil' [unknown_key] (Did you mean 'file'?)",
            ".agent/tasks/t/TASK.md:6: error: An item of 'acceptance' must have 'file', 'command' or 'text' [criterion]",
        ),
    ),
    Row(
        name="step with a tool that its agent is denied",
        files={
            **agent(
                "tool_approvals:\n  rules:\n    - {tool: Bash, when: {command: {startsWith: rm}}, allow: false}\n    - {tool: Write, allow: false}\n"
            ),
            **task("agent: a\ntools: [Write, Bash]\n"),
        },
        says=(
            ".agent/tasks/t/TASK.md:4: error: Tool 'Write' is denied by the rules of agent 'a', so this step can never call it [tool_denied] (Take the tool out, or change the rule)",
        ),
    ),
    Row(
        name="step with a tool that the host denies, and one that is turned off",
        files={
            POLICY: "tool_approvals:\n  rules:\n    - {tool: Write, allow: false}\n",
            ".agent/tool-access.json": '{"Edit": false}',
            **task("tools: [Write, Edit]\n"),
        },
        says=(
            ".agent/tasks/t/TASK.md:3: warning: Tool 'Write' is denied by the rules of the host, so this step can never call it [tool_denied] (Take the tool out, or change the rule)",
            ".agent/tasks/t/TASK.md:3: warning: Tool 'Edit' is turned off in this workspace, so this step does not have it [tool_off] (Turn it on in 'tool-access.json', or take it out)",
        ),
    ),
    Row(
        name="step with a tool that its agent does not list",
        files={**agent("tools: [Read]\n"), **task("agent: a\ntools: [Read, Grep]\n")},
        says=(
            ".agent/tasks/t/TASK.md:4: warning: Tool 'Grep' is not in the list of agent 'a'; this step adds it [tool_beyond_agent] (Add it to the agent too if that is meant, else take it out)",
        ),
    ),
    Row(
        name="step of an agent that cannot be used",
        files={**agent("tools: [Raed]\n"), **task("next: two.md\n", two="---\nname: Two\nagent: a\n---\n")},
        says=(
            ".agent/agents/a/AGENT.md:3: error: No tool is called 'Raed' [unknown_tool] (Did you mean 'Read'?)",
            ".agent/tasks/t/two.md:3: error: Agent 'a' cannot be used, so this step can never run [agent_unusable] (Correct the agent)",
        ),
    ),
    Row(
        name="criterion whose command is never run",
        files=task(
            "tool_approvals:\n  rules:\n    - {tool: Bash, when: {command: {equals: make}}, allow: true}\nnext: two.md\n",
            two="---\nname: Two\ntools: [Read]\nacceptance:\n  - command: make\nnext: three.md\n---\n",
            three="---\nname: Three\nacceptance:\n  - command: make\n  - {text: It is tested, command: make test}\n---\n",
        ),
        says=(
            ".agent/tasks/t/two.md:5: error: The command 'make' is never run, so this step can never succeed: the lists of tools leave it no 'Bash' [command_not_allowed] (Let it have 'Bash', and allow the command by a rule that names it whole)",
            ".agent/tasks/t/three.md:5: error: The command 'make test' is never run, so this step can never succeed: No rule of task 't' allows this call [command_not_allowed] (Let it have 'Bash', and allow the command by a rule that names it whole)",
        ),
    ),
    Row(
        name="step that no other one leads to, beside a page that is none",
        files={**task("", two="---\nname: Two\n---\n"), ".agent/tasks/t/README.md": "# About\n"},
        says=(
            ".agent/tasks/t/two.md:1: warning: No step leads to this file, so it never runs [step_unreached] (Write 'next: two.md' in the step before it, or take its front matter out)",
        ),
    ),
)
