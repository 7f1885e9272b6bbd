"""The table: what a project holds, and what is said about it. Nothing here runs anything."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    files: Mapping[str, str | bytes] = field(default_factory=dict[str, str | bytes])
    """Paths below the project and what is in them."""
    prepare: Callable[[Path], None] | None = None
    """What a file with a text cannot be."""
    says: tuple[str, ...]
    """Every line on standard output."""

    def write(self, root: Path) -> None:
        for path, content in self.files.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode() if isinstance(content, str) else content)
        if self.prepare is not None:
            self.prepare(root)


def agent(front: str, body: str = "") -> dict[str, str | bytes]:
    return {AGENT: f"---\nname: A\n{front}---\n{body}"}


def task(front: str, body: str = "", **steps: str) -> dict[str, str | bytes]:
    others = {f".agent/tasks/t/{name}.md": text for name, text in steps.items()}
    return {TASK: f"---\nname: T\n{front}---\n{body}", **others}


def skill(front: str, body: str = "") -> dict[str, str | bytes]:
    return {SKILL: f"---\n{front}---\n{body}"}


def shared(text: str | bytes) -> dict[str, str | bytes]:
    """A skill in a folder that is shared with other tools: what can be used of it is used."""
    return {SHARED: text}


def rules(text: str) -> dict[str, str | bytes]:
    return {POLICY: f"tool_approvals:\n  rules:\n{text}"}


def access(text: str | bytes) -> dict[str, str | bytes]:
    return {ACCESS: text}


def servers(text: str | bytes) -> dict[str, str | bytes]:
    return {MCP: text}


AGENT, TASK = ".agent/agents/a/AGENT.md", ".agent/tasks/t/TASK.md"
SKILL, SHARED = ".agent/skills/s/SKILL.md", ".claude/skills/s/SKILL.md"
POLICY, ACCESS, MCP = ".agent/policy.yaml", ".agent/tool-access.json", ".agent/mcp.json"
GOOD_SKILL = "name: s\ndescription: Does it.\n"


def dangling(root: Path) -> None:
    (root / ".agent/agents/a").mkdir(parents=True)
    (root / AGENT).symlink_to("nowhere")


def folder_as_file(root: Path) -> None:
    (root / AGENT).mkdir(parents=True)


def looping(root: Path) -> None:
    (root / ".agent/agents/a").mkdir(parents=True)
    (root / ".agent/agents/a/back").symlink_to("..")


def deep(root: Path) -> None:
    (root / ".agent/agents" / "/".join("abcdefghijklm")).mkdir(parents=True)


def linked_step(root: Path) -> None:
    (root / ".agent/tasks/t/two.md").symlink_to("TASK.md")


def file_as_folder(root: Path) -> None:
    (root / ".agent").mkdir()
    (root / ".agent/agents").write_text("")


def folder_as_step(root: Path) -> None:
    (root / POLICY).mkdir(parents=True)


ROWS: tuple[Row, ...] = (
    Row(
        name='yaml syntax',
        files=agent("tools: [Read\n"),
        says=(
            "/tmp/tmpiyhd5o46/work/.agent/agents/a/AGENT.md:4: error: YAML syntax error: did not find expected ',' or ']' [yaml_syntax]",
        ),
    ),
    Row(
        name='yaml alias',
        files=agent("tools: *x\n"),
        says=(
            "/tmp/tmp2gl8r3yi/work/.agent/agents/a/AGENT.md:3: error: Alias 'x' names no anchor before it [yaml_alias]",
        ),
    ),
    Row(
        name='yaml key',
        files=agent("? [a]\n: b\n"),
        says=(
            '/tmp/tmp_r2zyojf/work/.agent/agents/a/AGENT.md:3: error: A key must be plain text [yaml_key]',
        ),
    ),
    Row(
        name='yaml of two documents',
        files={POLICY: "a: 1\n---\nb: 2\n"},
        says=(
            '.agent/policy.yaml:2: error: The YAML has more than one document [yaml_many_documents]',
        ),
    ),
    Row(
        name='yaml too deep',
        files=agent("metadata: " + "[" * 25 + "]" * 25 + "\n"),
        says=(
            '/tmp/tmpd1g391wu/work/.agent/agents/a/AGENT.md:3: error: The YAML is nested deeper than 20 levels [yaml_too_deep]',
        ),
    ),
    Row(
        name='yaml too large',
        files={POLICY: "# " + "x" * 70_000 + "\n"},
        says=(
            '.agent/policy.yaml:1: error: The YAML is larger than 65536 bytes [yaml_too_large]',
        ),
    ),
    Row(
        name='yaml with too many values',
        files=agent("metadata: [" + "1, " * 10_001 + "1]\n"),
        says=(
            '/tmp/tmp6hg5c3dx/work/.agent/agents/a/AGENT.md:3: error: The YAML has more than 10000 values [yaml_too_many_nodes] (Write the value out, or split the file)',
        ),
    ),
    Row(
        name='duplicate key, and what is wrong beside it',
        files=agent("model: x\nmodel: y\ntols: [Read]\n"),
        says=(
            "/tmp/tmp9p1e4g20/work/.agent/agents/a/AGENT.md:4: error: Key 'model' stands twice, first in line 3 [duplicate_key] (Keep one of them)",
            "/tmp/tmp9p1e4g20/work/.agent/agents/a/AGENT.md:5: error: Unknown key 'tols' [unknown_key] (Did you mean 'tools'?)",
        ),
    ),
    Row(
        name='empty file',
        files={AGENT: ""},
        says=(
            '/tmp/tmpbaiygo6t/work/.agent/agents/a/AGENT.md:1: error: The file is empty [empty_file]',
        ),
    ),
    Row(
        name='no front matter',
        files={AGENT: "Hello\n"},
        says=(
            "/tmp/tmp1vej4qc2/work/.agent/agents/a/AGENT.md:1: error: The file has no front matter [no_front_matter] (Begin the file with a line '---', the fields, and a line '---')",
        ),
    ),
    Row(
        name='front matter without an end',
        files={AGENT: "---\nname: A\n"},
        says=(
            "/tmp/tmpzkcthzde/work/.agent/agents/a/AGENT.md:1: error: The front matter has no end [unclosed_front_matter] (End the front matter with a line '---')",
        ),
    ),
    Row(
        name='front matter that begins late',
        files={AGENT: "\n\n---\nname: A\n---\n"},
        says=(
            "/tmp/tmpuxmwxu5v/work/.agent/agents/a/AGENT.md:3: error: The file must begin with a line '---' [late_front_matter]",
        ),
    ),
    Row(
        name='front matter that is a list',
        files={AGENT: "---\n- a\n---\n"},
        says=(
            "/tmp/tmpzwrw50ls/work/.agent/agents/a/AGENT.md:2: error: The front matter is not a mapping [not_a_mapping] (Write one 'key: value' in each line)",
        ),
    ),
    Row(
        name='byte order mark',
        files={AGENT: b"\xef\xbb\xbf---\nname: A\n---\n"},
        says=(
            '/tmp/tmpzo8cr8co/work/.agent/agents/a/AGENT.md:1: warning: The file begins with a byte order mark [byte_order_mark]',
        ),
    ),
    Row(
        name='not UTF-8',
        files={AGENT: b"---\nname: \xe9\n---\n"},
        says=(
            '/tmp/tmpxpqgcggg/work/.agent/agents/a/AGENT.md:2: error: Byte 0xe9 is not UTF-8 [not_utf8]',
        ),
    ),
    Row(
        name='control character',
        files={AGENT: "---\nname: A\x01\n---\n"},
        says=(
            '/tmp/tmpbzvszio5/work/.agent/agents/a/AGENT.md:2: error: Control character U+0001 in the front matter [control_character]',
        ),
    ),
    Row(
        name='file too large',
        files={AGENT: "x" * (4 * 1024 * 1024 + 1)},
        says=(
            '/tmp/tmprr3gn151/work/.agent/agents/a/AGENT.md:1: error: The file is larger than 4194304 bytes [file_too_large]',
        ),
    ),
    Row(
        name='shared skill that was repaired',
        files=shared("---\nname: s\ndescription: Use: it\n---\n"),
        says=(
            "/tmp/tmpate0w6k6/work/.claude/skills/s/SKILL.md:3: warning: Field 'description' is not YAML and was read as plain text [yaml_repaired] (Put the value in quotes)",
        ),
    ),
    Row(
        name='shared skill with tabs',
        files=shared("---\nname: s\ndescription: d\nmetadata:\n\ta: b\n---\n"),
        says=(
            '/tmp/tmpfrrc0kdo/work/.claude/skills/s/SKILL.md:4: warning: Tabs indent this field [tab_indent]',
        ),
    ),
    Row(
        name='unknown key',
        files=agent("modle: x\n"),
        says=(
            "/tmp/tmpubvg4fht/work/.agent/agents/a/AGENT.md:3: error: Unknown key 'modle' [unknown_key] (Did you mean 'model'?)",
        ),
    ),
    Row(
        name='missing name',
        files={AGENT: "---\ndescription: d\n---\n"},
        says=(
            "/tmp/tmp3u69wyds/work/.agent/agents/a/AGENT.md:1: error: Field 'name' is missing [missing_name]",
        ),
    ),
    Row(
        name='text that is a list',
        files=agent("model: [a, b]\n"),
        says=(
            "/tmp/tmpazi2f0dd/work/.agent/agents/a/AGENT.md:3: error: Field 'model' must be text [not_text] (Write it as one value)",
        ),
    ),
    Row(
        name='list that is a mapping',
        files=agent("tools: {a: b}\n"),
        says=(
            "/tmp/tmpchx28ke9/work/.agent/agents/a/AGENT.md:3: error: Field 'tools' must be a list [not_a_list]",
        ),
    ),
    Row(
        name='mapping that is text',
        files=agent("metadata: x\n"),
        says=(
            "/tmp/tmpj7_f30bl/work/.agent/agents/a/AGENT.md:3: error: Field 'metadata' must be a mapping [not_a_mapping]",
        ),
    ),
    Row(
        name='not a number',
        files=agent("temperature: hot\nmax_tokens: 0\n"),
        says=(
            "/tmp/tmpupkszdn9/work/.agent/agents/a/AGENT.md:4: error: Field 'max_tokens' must be a number from 1 to 1e+07 [not_a_number]",
            "/tmp/tmpupkszdn9/work/.agent/agents/a/AGENT.md:3: error: Field 'temperature' must be a number from 0 to 2 [not_a_number]",
        ),
    ),
    Row(
        name='unknown profile',
        files=agent("profile: gaurded\n"),
        says=(
            "/tmp/tmpq2o_69vs/work/.agent/agents/a/AGENT.md:3: error: Profile 'gaurded' does not exist [unknown_profile] (Did you mean 'guarded'?)",
        ),
    ),
    Row(
        name='web that is a list',
        files=agent("web: [a]\n"),
        says=(
            "/tmp/tmp1jac04e2/work/.agent/agents/a/AGENT.md:3: error: Field 'web' must be a mapping [not_a_mapping] (Write 'allow:' or 'deny:' below it, each with a list of domains)",
        ),
    ),
    Row(
        name='no domain',
        files=agent("web:\n  allow: ['https://a.example']\n"),
        says=(
            "/tmp/tmpmbrzjg0d/work/.agent/agents/a/AGENT.md:4: error: 'https://a.example' is not a domain [not_a_domain] (Write it like 'example.com', without scheme, port, path or '*'; what is below it counts too)",
        ),
    ),
    Row(
        name='no domains',
        files=agent("web:\n  allow: []\n"),
        says=(
            "/tmp/tmpp9axgh7t/work/.agent/agents/a/AGENT.md:4: error: An empty list allows every domain [empty_domains] (Leave 'allow' out, or leave 'WebFetch' out of tools)",
        ),
    ),
    Row(
        name='unknown skill',
        files=agent("skills: [workspace-inventry]\n"),
        says=(
            "/tmp/tmpfj2g639y/work/.agent/agents/a/AGENT.md:3: error: No skill is called 'workspace-inventry' [unknown_skill] (Did you mean 'workspace-inventory'?)",
        ),
    ),
    Row(
        name='unknown task and agent',
        files={**task("agent: bob\n"), **agent("tasks: [tt]\n")},
        says=(
            "/tmp/tmpkxayg_35/work/.agent/agents/a/AGENT.md:3: error: No task is called 'tt' [unknown_task] (Did you mean 't'?)",
            "/tmp/tmpkxayg_35/work/.agent/tasks/t/TASK.md:3: error: No agent is called 'bob' [unknown_agent] (Add the agent, or take the name out)",
        ),
    ),
    Row(
        name='IDs that differ in case',
        files={AGENT: "---\nname: A\n---\n", ".agent/agents/A/AGENT.md": "---\nname: B\n---\n"},
        says=(
            "/tmp/tmpj6a6yxja/work/.agent/agents/a/AGENT.md:1: error: ID 'a' is the same as that of '/tmp/tmpj6a6yxja/work/.agent/agents/A/AGENT.md' where case does not count [duplicate_id] (Rename one of the folders)",
        ),
    ),
    Row(
        name='IDs that differ in Unicode form',
        files={".agent/tasks/caf\u00e9/TASK.md": "---\nname: A\n---\n", ".agent/tasks/cafe\u0301/TASK.md": "---\nname: B\n---\n"},
        says=(
            "/tmp/tmpobarljry/work/.agent/tasks/café/TASK.md:1: error: ID 'café' is the same as that of '/tmp/tmpobarljry/work/.agent/tasks/café/TASK.md' where case does not count [duplicate_id] (Rename one of the folders)",
        ),
    ),
    Row(
        name='one ID in two folders',
        files={TASK: "---\nname: A\n---\n", ".nanobot/tasks/T/TASK.md": "---\nname: B\n---\n"},
        says=(
            "/tmp/tmpe5jokq1o/work/.nanobot/tasks/T/TASK.md:1: error: ID 'T' is the same as that of '/tmp/tmpe5jokq1o/work/.agent/tasks/t/TASK.md' where case does not count [duplicate_id] (Rename one of the folders)",
        ),
    ),
    Row(
        name='unknown tool in an agent',
        files=agent("tools:\n  - inherit\n  - Raed\n  - finish\n  - Bash\n"),
        says=(
            "/tmp/tmplhu7bwxu/work/.agent/agents/a/AGENT.md:5: error: No tool is called 'Raed' [unknown_tool] (Did you mean 'Read'?)",
        ),
    ),
    Row(
        name='unknown tool in a step',
        files=task("next: two.md\n", two="---\ntools: [Grab]\n---\n"),
        says=(
            "/tmp/tmp2ot1rutz/work/.agent/tasks/t/two.md:2: error: No tool is called 'Grab' [unknown_tool] (Add the tool, or take the name out)",
        ),
    ),
    Row(
        name='unknown tool in a skill',
        files=skill(GOOD_SKILL + "tools: [Wrte]\n"),
        says=(
            "/tmp/tmphv3avn93/work/.agent/skills/s/SKILL.md:4: error: No tool is called 'Wrte' [unknown_tool] (Did you mean 'Write'?)",
        ),
    ),
    Row(
        name='tool of a server that is not configured',
        files={**agent("tools: [githib/search, github/search]\n"), **servers('{"mcpServers": {"github": {"command": "x"}}}')},
        says=(
            "/tmp/tmpgt7m3lqn/work/.agent/agents/a/AGENT.md:3: error: No MCP server is called 'githib' [unknown_tool] (Did you mean 'github'?)",
        ),
    ),
    Row(
        name='tool of a server where none is configured',
        files=agent("tools: [github/search]\n"),
        says=(
            "/tmp/tmpubyl78wn/work/.agent/agents/a/AGENT.md:3: error: No MCP server is called 'github' [unknown_tool] (Add it to '.agent/mcp.json', or take the name out)",
        ),
    ),
    Row(
        name='tool of a skill that is not there',
        files=agent("tools: [nots.add]\n"),
        says=(
            "/tmp/tmpdtawjoxl/work/.agent/agents/a/AGENT.md:3: error: No skill is called 'nots', so it has no tool [unknown_tool]",
        ),
    ),
    Row(
        name='tool that a toolset may bring',
        files=agent("tools: [greet]\nskills: [hello-extended]\n"),
        says=(
            "/tmp/tmpgrsko_6x/work/.agent/agents/a/AGENT.md:3: warning: No tool is called 'greet' [unknown_tool] (Add the tool, or take the name out, unless a toolset brings it)",
        ),
    ),
    Row(
        name='model that the host does not allow',
        files={**agent("model: gpt-5\nallowed_models: [claude-sonnet-4-5, other]\n"), "agent.yaml": "model:\n  allowed_models: [claude-sonnet-4-5]\n"},
        says=(
            "/tmp/tmpuzt8etak/work/.agent/agents/a/AGENT.md:3: error: Model 'gpt-5' is not allowed here [model_not_allowed] (model.allowed_models has claude-sonnet-4-5)",
            "/tmp/tmpuzt8etak/work/.agent/agents/a/AGENT.md:4: warning: Model 'other' has no effect [model_not_allowed] (model.allowed_models has claude-sonnet-4-5)",
        ),
    ),
    Row(
        name='next that is missing',
        files=task("next: two.md\n"),
        says=(
            "/tmp/tmp8veh3krh/work/.agent/tasks/t/TASK.md:3: error: Next step 'two.md' does not exist [next_missing] (Name a Markdown file beside this one)",
        ),
    ),
    Row(
        name='next that goes round',
        files=task("next: two.md\n", two="---\nnext: TASK.md\n---\n"),
        says=(
            "/tmp/tmp8ynsie0g/work/.agent/tasks/t/two.md:2: error: Next step 'TASK.md' was a step already [next_cycle] (Name a Markdown file beside this one)",
        ),
    ),
    Row(
        name='next outside of the folder',
        files=task("next: ../x.md\n"),
        says=(
            "/tmp/tmpngr74xf9/work/.agent/tasks/t/TASK.md:3: error: Next step '../x.md' is not a Markdown file of the same folder [next_outside] (Name a Markdown file beside this one)",
        ),
    ),
    Row(
        name='next that is a link',
        files=task("next: two.md\n"),
        prepare=linked_step,
        says=(
            "/tmp/tmpfy_xu_49/work/.agent/tasks/t/TASK.md:3: error: Next step 'two.md' is a link [next_outside] (Name a Markdown file beside this one)",
        ),
    ),
    Row(
        name='too many steps',
        files=task("next: s1.md\n", **{f"s{n}": f"---\nnext: s{n + 1}.md\n---\n" for n in range(1, 101)}),
        says=(
            '/tmp/tmp07n1886c/work/.agent/tasks/t/s99.md:2: error: The task has more than 100 steps [next_too_many] (Name a Markdown file beside this one)',
        ),
    ),
    Row(
        name='inputs in a later step',
        files=task("next: two.md\n", two="---\ninputs:\n  - name: x\n---\n"),
        says=(
            "/tmp/tmpoxo5o56b/work/.agent/tasks/t/two.md:2: error: Field 'inputs' is allowed only in 'TASK.md' [inputs_in_step] (Move it to 'TASK.md')",
        ),
    ),
    Row(
        name='inputs that are no list',
        files=task("inputs: x\n"),
        says=(
            "/tmp/tmpafq4tjxc/work/.agent/tasks/t/TASK.md:3: error: Field 'inputs' must be a list [not_a_list] (Write one '- name: …' for each)",
        ),
    ),
    Row(
        name='input that is no mapping',
        files=task("inputs: [x]\n"),
        says=(
            "/tmp/tmpnwzk1bu7/work/.agent/tasks/t/TASK.md:3: error: An input must be a mapping [input] (Write '- name: …' and below it 'description: …')",
        ),
    ),
    Row(
        name='input with a wrong name',
        files=task("inputs:\n  - name: a b\n"),
        says=(
            "/tmp/tmp5vfn4jnc/work/.agent/tasks/t/TASK.md:4: error: Input name 'a b' must be letters, digits, hyphens and underscores [input]",
        ),
    ),
    Row(
        name='input that stands twice',
        files=task("inputs:\n  - name: a\n  - name: a\n"),
        says=(
            "/tmp/tmpg3wd89c5/work/.agent/tasks/t/TASK.md:5: error: Input 'a' stands twice [duplicate_input]",
        ),
    ),
    Row(
        name='default that its schema forbids',
        files=task("inputs:\n  - name: count\n    default: many\n    schema: {type: integer}\n"),
        says=(
            "/tmp/tmpd9_umxsn/work/.agent/tasks/t/TASK.md:6: error: The default of input 'count' is not what its schema says [input_default] ('many' is not of type 'integer' (at $))",
        ),
    ),
    Row(
        name='schema that is none',
        files=task("output_schema: {type: thing}\n"),
        says=(
            "/tmp/tmpm0hzwa2y/work/.agent/tasks/t/TASK.md:3: error: Field 'output_schema' is not a JSON Schema: 'thing' is not valid under any of the given schemas [schema]",
        ),
    ),
    Row(
        name='schema that is text',
        files=task("output_schema: object\n"),
        says=(
            "/tmp/tmpkwibcm9d/work/.agent/tasks/t/TASK.md:3: error: Field 'output_schema' must be a JSON Schema [not_a_mapping] (Write 'type: …' below it)",
        ),
    ),
    Row(
        name='placeholder for an unknown input',
        files=task("inputs:\n  - name: topic\n", "\nAbout {{inputs.topc}}.\n"),
        says=(
            "/tmp/tmprwnv9asi/work/.agent/tasks/t/TASK.md:7: error: Input 'topc' is not declared [unknown_input] (Did you mean 'topic'?)",
        ),
    ),
    Row(
        name='placeholder for an unknown step',
        files=task("", "{{steps.two.result}}\n"),
        says=(
            "/tmp/tmppz4z_w1b/work/.agent/tasks/t/TASK.md:4: error: The task has no step 'two' [unknown_step] (Name the file of an earlier step)",
        ),
    ),
    Row(
        name='placeholder that is misspelt',
        files=task("", "{{input.x}}\n"),
        says=(
            "/tmp/tmppf81wo17/work/.agent/tasks/t/TASK.md:4: error: '{{input.x}}' is no placeholder [placeholder] (Write {{inputs.NAME}} or {{steps.FILE.result}})",
        ),
    ),
    Row(
        name='placeholder in a task with another problem',
        files=task("modle: x\n", "{{inputs.x}}\n"),
        says=(
            "/tmp/tmp39h5ket7/work/.agent/tasks/t/TASK.md:3: error: Unknown key 'modle' [unknown_key] (Known keys: name, description, metadata, agent, tools, tool_approvals, skills, tasks, task_approvals, inputs, next, output_schema, acceptance)",
            "/tmp/tmp39h5ket7/work/.agent/tasks/t/TASK.md:5: error: Input 'x' is not declared [unknown_input] (Declare it under 'inputs' in 'TASK.md')",
        ),
    ),
    Row(
        name='criteria that are no list',
        files=task("acceptance: x\n"),
        says=(
            "/tmp/tmplc60oyq_/work/.agent/tasks/t/TASK.md:3: error: Field 'acceptance' must be a list [not_a_list] (Write one '- …' for each criterion)",
        ),
    ),
    Row(
        name='criterion that says nothing',
        files=task("acceptance:\n  - {contains: x}\n  - [a]\n  - {fil: x}\n"),
        says=(
            '/tmp/tmprtybahs2/work/.agent/tasks/t/TASK.md:4: error: A criterion must say what is to hold [criterion]',
            "/tmp/tmprtybahs2/work/.agent/tasks/t/TASK.md:5: error: A criterion must be text or a mapping [criterion] (Write a sentence, or 'file: …' or 'command: …')",
            "/tmp/tmprtybahs2/work/.agent/tasks/t/TASK.md:6: error: Unknown key 'fil' [unknown_key] (Did you mean 'file'?)",
            '/tmp/tmprtybahs2/work/.agent/tasks/t/TASK.md:6: error: A criterion must say what is to hold [criterion]',
        ),
    ),
    Row(
        name='skill without a description',
        files=skill("name: s\n"),
        says=(
            "/tmp/tmplp6a5s_l/work/.agent/skills/s/SKILL.md:1: error: Field 'description' is missing [missing_description]",
        ),
    ),
    Row(
        name='skill without a name',
        files=skill("description: d\n"),
        says=(
            "/tmp/tmpyn5l7e7v/work/.agent/skills/s/SKILL.md:1: error: Field 'name' is missing [missing_name] (Add 'name: s')",
        ),
    ),
    Row(
        name='skill with a wrong name',
        files=skill("name: -Not--Good!\ndescription: d\n"),
        says=(
            "/tmp/tmp8_4iyico/work/.agent/skills/s/SKILL.md:2: error: Name '-Not--Good!' must be lower case [name_case]",
            "/tmp/tmp8_4iyico/work/.agent/skills/s/SKILL.md:2: error: Name '-Not--Good!' must not begin or end with a hyphen [name_hyphen]",
            "/tmp/tmp8_4iyico/work/.agent/skills/s/SKILL.md:2: error: Name '-Not--Good!' must not have two hyphens in a row [name_double_hyphen]",
            "/tmp/tmp8_4iyico/work/.agent/skills/s/SKILL.md:2: error: Name '-Not--Good!' may only have letters, digits and hyphens [name_characters]",
            "/tmp/tmp8_4iyico/work/.agent/skills/s/SKILL.md:2: error: Name '-Not--Good!' differs from the folder 's' [name_folder]",
        ),
    ),
    Row(
        name='skill with a long name',
        files={f".agent/skills/{'x' * 65}/SKILL.md": f"---\nname: {'x' * 65}\ndescription: d\n---\n"},
        says=(
            '/tmp/tmpzpgp_2ww/work/.agent/skills/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/SKILL.md:2: error: Name has 65 characters, 64 are allowed [name_too_long]',
        ),
    ),
    Row(
        name='skill with a long description',
        files=skill(f"name: s\ndescription: {'x' * 1025}\n"),
        says=(
            "/tmp/tmp2ymv2lnk/work/.agent/skills/s/SKILL.md:3: error: Field 'description' has 1025 characters, 1024 are allowed [description_too_long]",
        ),
    ),
    Row(
        name='skill with a long compatibility',
        files=skill(GOOD_SKILL + f"compatibility: {'x' * 501}\n"),
        says=(
            "/tmp/tmpgcw9p07v/work/.agent/skills/s/SKILL.md:4: error: Field 'compatibility' has 501 characters, 1 to 500 are allowed [compatibility_length]",
        ),
    ),
    Row(
        name='skill whose metadata are text',
        files=skill(GOOD_SKILL + "metadata: x\n"),
        says=(
            "/tmp/tmpu1bbjht6/work/.agent/skills/s/SKILL.md:4: error: Field 'metadata' must be a mapping [metadata_not_mapping] (Write 'key: value' lines below it)",
        ),
    ),
    Row(
        name='skill with nested metadata',
        files=skill(GOOD_SKILL + "metadata:\n  a: [b]\n"),
        says=(
            "/tmp/tmpd_baclzz/work/.agent/skills/s/SKILL.md:5: error: Metadata 'a' must be text [metadata_not_text]",
        ),
    ),
    Row(
        name='skill with a list of allowed tools',
        files=skill(GOOD_SKILL + "allowed-tools: [Read]\n"),
        says=(
            "/tmp/tmp5vkce0p8/work/.agent/skills/s/SKILL.md:4: error: Field 'allowed-tools' must be text [allowed_tools_list] (Write the tools in one line, separated by spaces)",
        ),
    ),
    Row(
        name='skill with an unknown field',
        files=skill(GOOD_SKILL + "licence: x\n"),
        says=(
            "/tmp/tmpsnhfbef8/work/.agent/skills/s/SKILL.md:4: warning: Field 'licence' is not part of the Agent Skills specification [unknown_field] (Did you mean 'license'?)",
        ),
    ),
    Row(
        name='skill with wrong permissions',
        files=skill(GOOD_SKILL + "permissions: [a]\n"),
        says=(
            "/tmp/tmpn9sexrya/work/.agent/skills/s/SKILL.md:4: error: Field 'permissions' must have the key 'env' [permissions] (Write the names under 'permissions: env:')",
        ),
    ),
    Row(
        name='skill with a wrong entrypoint',
        files=skill(GOOD_SKILL + "entrypoint: [a]\n"),
        says=(
            "/tmp/tmplpf2cr_b/work/.agent/skills/s/SKILL.md:4: error: Field 'entrypoint' must name a script [entrypoint] (Write 'entrypoint: script argument …', or 'script:' and 'args:' below it)",
        ),
    ),
    Row(
        name='skill whose entrypoint is not there',
        files={**skill(GOOD_SKILL + "entrypoint:\n  script: cont\n"), ".agent/skills/s/scripts/count.py": ""},
        says=(
            "/tmp/tmp224lnupv/work/.agent/skills/s/SKILL.md:4: error: The entrypoint names the script 'cont', which the skill does not have [missing_script] (Did you mean 'count.py'?)",
        ),
    ),
    Row(
        name='skill file in another case',
        files={".agent/skills/s/Skill.md": "---\nname: s\ndescription: d\n---\n"},
        says=(
            "/tmp/tmp21wo0djb/work/.agent/skills/s/Skill.md:1: warning: The file is called 'Skill.md', not 'SKILL.md' [file_name]",
        ),
    ),
    Row(
        name='link to nothing',
        prepare=dangling,
        says=(
            "/tmp/tmpop5551gq/work/.agent/agents/a/AGENT.md:1: error: 'AGENT.md' is a link to nothing [dangling_link]",
        ),
    ),
    Row(
        name='folder that should be a file',
        prepare=folder_as_file,
        says=(
            "/tmp/tmpbdn0t8fu/work/.agent/agents/a/AGENT.md:1: error: 'AGENT.md' is not a file [not_a_file]",
        ),
    ),
    Row(
        name='link that leads back',
        prepare=looping,
        says=(
            "/tmp/tmp_lxozo9u/work/.agent/agents/a/back:1: warning: Link 'back' leads to a folder that is read already [link_loop]",
        ),
    ),
    Row(
        name='folders too deep',
        prepare=deep,
        says=(
            '/tmp/tmpgvrhjedx/work/.agent/agents/a/b/c/d/e/f/g/h/i/j/k/l:1: warning: Folders deeper than 12 levels are not read [too_deep]',
        ),
    ),
    Row(
        name='file that should be a folder',
        prepare=file_as_folder,
        says=(
            '/tmp/tmpdl5btnf1/work/.agent/agents:1: error: The folder cannot be read: Not a directory [unreadable]',
        ),
    ),
    Row(
        name='unknown tool in a rule',
        files=rules("    - tool: Wriet\n      allow: true\n"),
        says=(
            ".agent/policy.yaml:3: error: No tool is called 'Wriet' [unknown_tool] (Did you mean 'Write'?)",
        ),
    ),
    Row(
        name='unknown task in a rule',
        files={**task(""), **agent("task_approvals:\n  - {task: tt, allow: true}\n")},
        says=(
            "/tmp/tmpukb30ch2/work/.agent/agents/a/AGENT.md:4: error: No task is called 'tt' [unknown_task] (Did you mean 't'?)",
        ),
    ),
    Row(
        name='unknown key in a rule',
        files=agent("tool_approvals:\n  - tool: Read\n    allow: true\n    wen: {}\n"),
        says=(
            "/tmp/tmpsl07p0f_/work/.agent/agents/a/AGENT.md:6: error: Unknown key 'wen' [unknown_key] (Did you mean 'when'?)",
        ),
    ),
    Row(
        name='unknown matcher',
        files=rules("    - tool: Read\n      allow: true\n      when:\n        path:\n          startWith: x\n"),
        says=(
            ".agent/policy.yaml:7: error: Unknown matcher 'startWith' [unknown_matcher] (Did you mean 'startsWith'?)",
        ),
    ),
    Row(
        name='what is demanded is no matcher',
        files=rules("    - tool: Read\n      allow: true\n      when: {path: x}\n"),
        says=(
            ".agent/policy.yaml:5: error: What is demanded of 'path' must be a matcher [not_a_matcher] (Write 'equals: …', or another of equals, in, startsWith, matches, contains, containsAll, anyOf, allOf)",
        ),
    ),
    Row(
        name='pattern that cannot be used',
        files=rules("    - tool: Read\n      allow: true\n      when: {path: {matches: '(?=x)'}}\n"),
        says=(
            ".agent/policy.yaml:5: error: Expression '(?=x)' cannot be used: invalid perl operator: (?= [bad_pattern] (The syntax is that of RE2, without look-around)",
        ),
    ),
    Row(
        name='matchers with a wrong operand',
        files=rules("    - tool: Read\n      allow: true\n      when: {path: {equals: [a], in: b, startsWith: [c], anyOf: d}}\n"),
        says=(
            ".agent/policy.yaml:5: error: Matcher 'equals' needs a single value [not_a_scalar]",
            ".agent/policy.yaml:5: error: Matcher 'in' needs a list of single values [not_a_list]",
            ".agent/policy.yaml:5: error: Matcher 'startsWith' needs a text [not_text]",
            ".agent/policy.yaml:5: error: Matcher 'anyOf' needs a list of matchers [not_a_list]",
        ),
    ),
    Row(
        name='rule without a tool',
        files=rules("    - allow: true\n"),
        says=(
            ".agent/policy.yaml:3: error: A rule must name its tool [missing_tool] (Add 'tool: …')",
        ),
    ),
    Row(
        name='rule for a task without a task',
        files=agent("task_approvals:\n  - allow: true\n"),
        says=(
            "/tmp/tmpv5r68f88/work/.agent/agents/a/AGENT.md:4: error: A rule must name its task [missing_task] (Add 'task: …')",
        ),
    ),
    Row(
        name='rule without a verdict',
        files=rules("    - tool: Read\n"),
        says=(
            ".agent/policy.yaml:3: error: A rule must say what it decides [missing_verdict] (Add 'allow: true' or 'verdict: ask')",
        ),
    ),
    Row(
        name='rule with two verdicts',
        files=rules("    - tool: Read\n      allow: true\n      verdict: ask\n"),
        says=(
            ".agent/policy.yaml:5: error: A rule has 'allow' or 'verdict', not both [two_verdicts] (Keep one of them)",
        ),
    ),
    Row(
        name='unknown verdict',
        files=rules("    - tool: Read\n      verdict: aks\n"),
        says=(
            ".agent/policy.yaml:4: error: Field 'verdict' must be allow, ask or deny, not 'aks' [unknown_verdict]",
        ),
    ),
    Row(
        name='unknown default',
        files={POLICY: "tool_approvals:\n  default: allow\n"},
        says=(
            ".agent/policy.yaml:2: error: Default 'allow' does not exist [unknown_default] (One of approve, ask, deny; what is allowed stands in rules)",
        ),
    ),
    Row(
        name='rules that are text',
        files=agent("tool_approvals: x\n"),
        says=(
            "/tmp/tmpwbyvnr5y/work/.agent/agents/a/AGENT.md:3: error: Approvals must be a mapping with 'rules' [not_a_policy] (Write 'rules:' below it)",
        ),
    ),
    Row(
        name='rules that are no list',
        files={POLICY: "tool_approvals:\n  rules: x\n"},
        says=(
            ".agent/policy.yaml:2: error: Field 'rules' must be a list [not_a_list] (Write one '- tool: …' for each)",
        ),
    ),
    Row(
        name='rule that is text',
        files=rules("    - x\n"),
        says=(
            ".agent/policy.yaml:3: error: A rule must be a mapping [not_a_rule] (Write '- tool: …' and 'allow: true')",
        ),
    ),
    Row(
        name='conditions and examples that are text',
        files=rules("    - tool: Read\n      allow: true\n      when: x\n      examples: y\n"),
        says=(
            ".agent/policy.yaml:5: error: Field 'when' must be a mapping [not_a_mapping] (Write the name of an argument and below it a matcher)",
            ".agent/policy.yaml:6: error: Field 'examples' must be a mapping [not_a_mapping] (Write 'allow:', 'ask:' or 'deny:' and below it a list of arguments)",
        ),
    ),
    Row(
        name='example that is judged otherwise',
        files=agent("tool_approvals:\n  - tool: Write\n    allow: true\n    when: {path: {startsWith: docs/}}\n    examples:\n      allow: [{path: src/a.py}]\n"),
        says=(
            "/tmp/tmpwixyk7ep/work/.agent/agents/a/AGENT.md:8: error: Example 1 under 'allow' is judged 'ask' [failed_example] (No rule matches it; correct the rule or move the example)",
        ),
    ),
    Row(
        name='example that is text',
        files=rules("    - tool: Read\n      allow: true\n      examples: {allow: [x]}\n"),
        says=(
            ".agent/policy.yaml:5: error: An example must be a mapping of arguments [not_an_example] (Write it like '{path: src/a.py}')",
        ),
    ),
    Row(
        name='examples of many tools',
        files=rules("    - tool: web*\n      allow: true\n      examples: {allow: [{path: x}]}\n"),
        says=(
            '.agent/policy.yaml:5: error: Examples need a rule for one tool [examples_of_many] (Name the tool in full, or put the examples into another rule)',
        ),
    ),
    Row(
        name='rules of a skill and of a step',
        files={**skill(GOOD_SKILL + "tool_approvals:\n  - {tool: Raed, allow: true}\n"), **task("next: two.md\n", two="---\ntool_approvals:\n  - {tool: Bahs, allow: true}\n---\n")},
        says=(
            "/tmp/tmp_3ese2sr/work/.agent/tasks/t/two.md:3: error: No tool is called 'Bahs' [unknown_tool] (Did you mean 'Bash'?)",
            "/tmp/tmp_3ese2sr/work/.agent/skills/s/SKILL.md:5: error: No tool is called 'Raed' [unknown_tool] (Did you mean 'Read'?)",
        ),
    ),
    Row(
        name='rules of a shared skill',
        files=shared("---\nname: s\ndescription: d\ntool_approvals:\n  - {tool: Raed, allow: true}\n---\n"),
        says=(
            "/tmp/tmpjanz51lk/work/.claude/skills/s/SKILL.md:5: error: No tool is called 'Raed' [unknown_tool] (Did you mean 'Read'?)",
        ),
    ),
    Row(
        name='policy that is a folder',
        prepare=folder_as_step,
        says=(
            ".agent/policy.yaml:1: error: The policy '.agent/policy.yaml' cannot be read: Is a directory [unreadable]",
        ),
    ),
    Row(
        name='tool access that is no JSON',
        files=access("{\n"),
        says=(
            '.agent/tool-access.json:2: error: The file is not JSON: Expecting property name enclosed in double quotes [tool_access]',
        ),
    ),
    Row(
        name='tool access in another encoding',
        files=access(b"\xff\xfe"),
        says=(
            '.agent/tool-access.json:1: error: The file is not UTF-8 [tool_access]',
        ),
    ),
    Row(
        name='tool access that is a list',
        files=access("[]"),
        says=(
            '.agent/tool-access.json:1: error: The file must hold an object [tool_access]',
        ),
    ),
    Row(
        name='tool access with several faults',
        files=access('{\n  "tools": {\n    "Bash": "off",\n    "Read": true,\n    "Read": false\n  },\n  "other": 1\n}\n'),
        says=(
            ".agent/tool-access.json:5: error: Key 'Read' stands twice [tool_access]",
            ".agent/tool-access.json:7: error: Unknown key 'other' beside 'tools' [tool_access]",
            '.agent/tool-access.json:3: error: Tool \'Bash\' must be true, false, or {"enabled": …} [tool_access]',
        ),
    ),
    Row(
        name='tool access whose tools are a list',
        files=access('{"tools": []}'),
        says=(
            ".agent/tool-access.json:1: error: Key 'tools' must hold an object [tool_access]",
        ),
    ),
    Row(
        name='tool access for a tool that nobody has',
        files=access('{\n  "Bsah": false\n}\n'),
        says=(
            ".agent/tool-access.json:2: error: No tool is called 'Bsah' [unknown_tool] (Did you mean 'Bash'?)",
        ),
    ),
    Row(
        name='tool access too deep',
        files=access("[" * 100_000),
        says=(
            '.agent/tool-access.json:1: error: The file is nested too deeply [tool_access]',
        ),
    ),
    Row(
        name='tool access too large',
        files=access(" " * (256 * 1024 + 1)),
        says=(
            '.agent/tool-access.json:1: error: The file is larger than 262144 bytes [tool_access]',
        ),
    ),
    Row(
        name='servers that are no JSON',
        files=servers("{"),
        says=(
            '.agent/mcp.json:1: error: The file is not JSON: Expecting property name enclosed in double quotes [not_json]',
        ),
    ),
    Row(
        name='servers in another encoding',
        files=servers(b"\xff"),
        says=(
            '.agent/mcp.json:1: error: The file is not UTF-8 [not_utf8]',
        ),
    ),
    Row(
        name='servers that are a list',
        files=servers("[]"),
        says=(
            '.agent/mcp.json:1: error: The file must hold an object [not_an_object]',
        ),
    ),
    Row(
        name='servers too deep',
        files=servers("[" * 100_000),
        says=(
            '.agent/mcp.json:1: error: The file is nested too deeply [too_deep]',
        ),
    ),
    Row(
        name='servers too large',
        files=servers(" " * (1024 * 1024 + 1)),
        says=(
            '.agent/mcp.json:1: error: The file is larger than 1048576 bytes [too_large]',
        ),
    ),
    Row(
        name='no servers',
        files=servers('{"servers": {}}'),
        says=(
            ".agent/mcp.json:1: warning: Key 'servers' has no effect [unknown_key]",
            ".agent/mcp.json:1: error: The file must hold {'mcpServers': {…}} [no_servers]",
        ),
    ),
    Row(
        name='server with a wrong name',
        files=servers('{"mcpServers": {\n  "a/b": {"command": "x"}}}'),
        says=(
            ".agent/mcp.json:2: error: The server name 'a/b' cannot stand before the slash of a tool's name [invalid_name] (Use up to 48 letters, digits, - and _)",
        ),
    ),
    Row(
        name='server that is text',
        files=servers('{"mcpServers": {"a": "x"}}'),
        says=(
            ".agent/mcp.json:1: error: Server 'a' must be an object [not_an_object]",
        ),
    ),
    Row(
        name='server without a target',
        files=servers('{"mcpServers": {"a": {}}}'),
        says=(
            ".agent/mcp.json:1: error: Server 'a' must have either a 'command' or a 'url' [no_target]",
        ),
    ),
    Row(
        name='server without an address',
        files=servers('{"mcpServers": {"a": {"url": "x"}}}'),
        says=(
            ".agent/mcp.json:1: error: The url of server 'a' must begin with http:// or https:// [no_address]",
        ),
    ),
    Row(
        name='server of an unknown type',
        files=servers('{"mcpServers": {"a": {\n  "command": "x", "type": "sse"}}}'),
        says=(
            ".agent/mcp.json:2: error: Server 'a' cannot have the type 'sse' [unknown_type] (Use 'stdio' with a command, 'http' with a url; the older 'sse' is not supported)",
        ),
    ),
    Row(
        name='server with a key of the other kind',
        files=servers('{"mcpServers": {"a": {"command": "x",\n  "headers": {}}}}'),
        says=(
            ".agent/mcp.json:2: error: Server 'a' is of a kind that has no 'headers' [wrong_key]",
        ),
    ),
    Row(
        name='server with a wrong value',
        files=servers('{"mcpServers": {"a": {"command": "x", "args": "y"}}}'),
        says=(
            ".agent/mcp.json:1: error: Key 'args' of server 'a' must be a list of texts [wrong_type]",
        ),
    ),
    Row(
        name='server with an unknown key',
        files=servers('{"mcpServers": {"a": {"command": "x", "autoApprove": []}}}'),
        says=(
            ".agent/mcp.json:1: warning: Key 'autoApprove' of server 'a' has no effect [unknown_key] (What may be called without a question is decided by rules alone)",
        ),
    ),
    Row(
        name='server that stands twice',
        files=servers('{"mcpServers": {"a": {"command": "x"},\n  "a": {"command": "y"}}}'),
        says=(
            ".agent/mcp.json:1: error: Key 'a' stands twice [twice]",
        ),
    ),
    Row(
        name='context file that is no JSON',
        files={"context/soul.json": "{\n"},
        says=(
            'context/soul.json:1: error: The file is not JSON: Expecting property name enclosed in double quotes [context_file]',
        ),
    ),
    Row(
        name='context file in another encoding',
        files={"context/system_prompt.md": b"a\n\xff"},
        says=(
            'context/system_prompt.md:2: error: The file is not UTF-8 [context_file]',
        ),
    ),
    Row(
        name='settings with several problems',
        files={"agent.yaml": "model:\n  temprature: 1\nruntime:\n  max_turns: x\nskills: 3\n", **agent("tols: []\n")},
        says=(
            "agent.yaml:2: error: Unknown key 'model.temprature' [unknown_key] (Did you mean 'temperature'?)",
            "agent.yaml:4: error: runtime.max_turns must be a whole number, not 'x' [bad_value]",
            "agent.yaml:5: error: skills must be a section [wrong_type] (It has keys such as 'dir', indented below it)",
            "/tmp/tmpn34ifle0/work/.agent/agents/a/AGENT.md:3: error: Unknown key 'tols' [unknown_key] (Did you mean 'tools'?)",
        ),
    ),
    Row(
        name='settings with a secret',
        files={"agent.yaml": "model:\n  api_key: " + "sk-" + "a" * 30 + "\n"},
        says=(
            "agent.yaml:2: error: 'model.api_key' holds what looks like a secret; keys come only from environment variables [secret_in_file] (Remove it here, replace the key if others could read the file, and set its variable, such as ANTHROPIC_API_KEY, in the environment)",
        ),
    ),
    Row(
        name='settings with a password',
        files={"agent.yaml": "store:\n  database_url: postgresql://me:" + "secret@db/x\n"},
        says=(
            "agent.yaml:2: error: 'store.database_url' holds what looks like a secret; keys come only from environment variables [secret_in_file] (Remove it here, replace the key if others could read the file, and set DATABASE_URL in the environment)",
        ),
    ),
    Row(
        name='settings with an empty section',
        files={"agent.yaml": "model:\n  provider:\n"},
        says=(
            'agent.yaml:2: error: model.provider has no value [no_value] (Write a value, or remove the line to get the default)',
        ),
    ),
    Row(
        name='settings that are a list',
        files={"agent.yaml": "- a\n"},
        says=(
            'agent.yaml:1: error: The file has no sections at its top level [not_a_mapping] (Begin with a section such as `model:`)',
        ),
    ),
)
