# ruff: noqa: E501 - a line of the table is a line of the output
"""The table of problems: other files."""

from problem_row import Row, access, agent, servers

PASSWORD_FILE = "model:\n  providers:\n    openai:\n      base_url: https://me:{}@models.example/v1\n".format("word")
ROWS: tuple[Row, ...] = (
    Row(
        name="tool access that is no JSON",
        files=access("{\n"),
        says=(
            ".agent/tool-access.json:2: error: The file is not JSON: Expecting property name enclosed in double quotes [not_json]",
        ),
    ),
    Row(
        name="tool access in another encoding",
        files=access(b"\xff\xfe"),
        says=(".agent/tool-access.json:1: error: The file is not UTF-8 [not_utf8]",),
    ),
    Row(
        name="tool access that is a list",
        files=access("[]"),
        says=(".agent/tool-access.json:1: error: The file must be a mapping [not_a_mapping]",),
    ),
    Row(
        name="tool access with several faults",
        files=access(
            '{\n  "tools": {\n    "Bash": "off",\n    "Read": true,\n    "Read": false\n  },\n  "other": 1\n}\n'
        ),
        says=(
            ".agent/tool-access.json:3: error: Field 'Bash' must be true, false, or {\"enabled\": …} [bad_value]",
            ".agent/tool-access.json:5: error: Key 'Read' is repeated; it is first in line 4 [duplicate_key] (Keep one of them)",
            ".agent/tool-access.json:7: error: Unknown key 'other' [unknown_key] (Known keys: tools)",
        ),
    ),
    Row(
        name="tool access whose tools are a list",
        files=access('{"tools": []}'),
        says=(".agent/tool-access.json:1: error: Field 'tools' must be a mapping [not_a_mapping]",),
    ),
    Row(
        name="tool access for a tool that nobody has",
        files=access('{\n  "Bsah": false\n}\n'),
        says=(".agent/tool-access.json:2: error: No tool is called 'Bsah' [unknown_tool] (Did you mean 'Bash'?)",),
    ),
    Row(
        name="tool access too deep",
        files=access("[" * 100_000),
        says=(".agent/tool-access.json:1: error: The file is nested too deeply [too_deep]",),
    ),
    Row(
        name="tool access too large",
        files=access(" " * (256 * 1024 + 1)),
        says=(".agent/tool-access.json:1: error: The file is larger than 262144 bytes [file_too_large]",),
    ),
    Row(
        name="servers that are no JSON",
        files=servers("{"),
        says=(
            ".agent/mcp.json:1: error: The file is not JSON: Expecting property name enclosed in double quotes [not_json]",
        ),
    ),
    Row(
        name="servers in another encoding",
        files=servers(b"\xff"),
        says=(".agent/mcp.json:1: error: The file is not UTF-8 [not_utf8]",),
    ),
    Row(
        name="servers that are a list",
        files=servers("[]"),
        says=(".agent/mcp.json:1: error: The file must be a mapping [not_a_mapping]",),
    ),
    Row(
        name="servers too deep",
        files=servers("[" * 100_000),
        says=(".agent/mcp.json:1: error: The file is nested too deeply [too_deep]",),
    ),
    Row(
        name="servers too large",
        files=servers(" " * (1024 * 1024 + 1)),
        says=(".agent/mcp.json:1: error: The file is larger than 1048576 bytes [file_too_large]",),
    ),
    Row(
        name="no servers",
        files=servers('{"servers": {}}'),
        says=(
            ".agent/mcp.json:1: warning: Unknown key 'servers' [unknown_key] (Did you mean 'mcpServers'?)",
            ".agent/mcp.json:1: error: Field 'mcpServers' is missing [missing_mcpServers]",
        ),
    ),
    Row(
        name="server with a wrong name",
        files=servers('{"mcpServers": {\n  "a/b": {"command": "x"}}}'),
        says=(
            ".agent/mcp.json:2: error: The server name 'a/b' cannot be part of a tool's name [invalid_name] (Use up to 48 letters, digits, - and _)",
        ),
    ),
    Row(
        name="server that is text",
        files=servers('{"mcpServers": {"a": "x"}}'),
        says=(".agent/mcp.json:1: error: Server 'a' must be a mapping [not_a_mapping]",),
    ),
    Row(
        name="server without a target",
        files=servers('{"mcpServers": {"a": {}}}'),
        says=(".agent/mcp.json:1: error: Server 'a' must have either a 'command' or a 'url' [no_target]",),
    ),
    Row(
        name="server without an address",
        files=servers('{"mcpServers": {"a": {"url": "x"}}}'),
        says=(".agent/mcp.json:1: error: Field 'url' must begin with http:// or https:// [no_address]",),
    ),
    Row(
        name="server of an unknown type",
        files=servers('{"mcpServers": {"a": {\n  "command": "x", "type": "sse"}}}'),
        says=(
            ".agent/mcp.json:2: error: Field 'type' cannot be 'sse' [unknown_type] (Use 'stdio' with a command, 'http' with a url; the older 'sse' is not supported)",
        ),
    ),
    Row(
        name="server with a key of the other kind",
        files=servers('{"mcpServers": {"a": {"command": "x",\n  "headers": {}}}}'),
        says=(".agent/mcp.json:2: error: Field 'headers' has no effect for a server with a 'command' [wrong_key]",),
    ),
    Row(
        name="server with a wrong value",
        files=servers('{"mcpServers": {"a": {"command": "x", "args": "y"}}}'),
        says=(".agent/mcp.json:1: error: Field 'args' must be a list [not_a_list]",),
    ),
    Row(
        name="server with an unknown key",
        files=servers('{"mcpServers": {"a": {"command": "x", "autoApprove": []}}}'),
        says=(
            ".agent/mcp.json:1: warning: Unknown key 'autoApprove' [unknown_key] (Known keys: command, args, env, cwd, url, headers, type, disabled)",
        ),
    ),
    Row(
        name="server that stands twice",
        files=servers('{"mcpServers": {"a": {"command": "x"},\n  "a": {"command": "y"}}}'),
        says=(
            ".agent/mcp.json:2: error: Key 'a' is repeated; it is first in line 1 [duplicate_key] (Keep one of them)",
        ),
    ),
    Row(
        name="context file that is no JSON",
        files={"context/soul.json": "{\n"},
        says=(
            "context/soul.json:1: error: The file is not JSON: Expecting property name enclosed in double quotes [context_file]",
        ),
    ),
    Row(
        name="context file in another encoding",
        files={"context/system_prompt.md": b"a\n\xff"},
        says=("context/system_prompt.md:2: error: The file is not UTF-8 [context_file]",),
    ),
    Row(
        name="project instructions that import themselves and what is not there",
        files={"AGENTS.md": "Be brief.\n@AGENTS.md\n@docs/none.md\n@../other.md\n"},
        says=(
            "AGENTS.md:2: warning: The import 'AGENTS.md' is not followed: it imports itself [project_file]",
            "docs/none.md:3: warning: It cannot be read: No such file or directory [project_file]",
            "AGENTS.md:4: warning: The import '../other.md' is not followed: it lies outside of the folder [project_file]",
        ),
    ),
    Row(
        name="schedules that cannot be fired",
        files={
            ".agent/schedules.yaml": "schedules:\n  a:\n    cron: soon\n    prompt: go\n  b:\n    every: 1h\n    task: ghost\n  c: 3\n  d:\n    evry: 1h\n"
        },
        says=(
            ".agent/schedules.yaml:2: error: Schedule 'a': 'soon' is not a cron expression: Wrong number of fields [schedule_invalid]",
            ".agent/schedules.yaml:8: error: Schedule 'c' must be a mapping [not_a_mapping]",
            ".agent/schedules.yaml:10: error: Unknown key 'evry' [unknown_key] (Did you mean 'every'?)",
            ".agent/schedules.yaml:5: error: Schedule 'b': no task is called 'ghost' [unknown_task] (Add the task, or take the name out)",
        ),
    ),
    Row(
        name="hooks that cannot run",
        files={
            ".agent/hooks.yaml": "import: codex\nPreToolUze: []\nStop:\n  - hooks: [{type: prompt}, {type: command}, {command: x, timeout: 9999}]\n"
            "PreToolUse:\n  - {matcher: '(', hooks: [{command: x, comand: y}]}\n"
        },
        says=(
            ".agent/hooks.yaml:1: error: Field 'import' must be 'none' or 'claude', not 'codex' [bad_value]",
            ".agent/hooks.yaml:2: error: Unknown key 'PreToolUze' [unknown_key] (Did you mean 'PreToolUse'?)",
            ".agent/hooks.yaml:4: error: A hook has the type 'prompt' [unknown_type] (Only 'command' is supported)",
            ".agent/hooks.yaml:4: error: A hook has no command [no_command]",
            ".agent/hooks.yaml:4: error: Field 'timeout' must be 1 to 600 seconds [bad_timeout]",
            ".agent/hooks.yaml:6: error: Unknown key 'comand' [unknown_key] (Did you mean 'command'?)",
            ".agent/hooks.yaml:6: error: Field 'matcher' is not a regular expression: missing ), unterminated subpattern at position 0 [bad_matcher]",
        ),
    ),
    Row(
        name="schedules that are no mapping",
        files={".agent/schedules.yaml": "- a\n"},
        says=(".agent/schedules.yaml:1: error: The file must be a mapping [not_a_mapping] (Start with 'schedules:')",),
    ),
    Row(
        name="settings with several problems",
        files={"agent.yaml": "model:\n  temprature: 1\nruntime:\n  max_turns: x\nskills: 3\n", **agent("tols: []\n")},
        says=(
            "agent.yaml:2: error: Unknown key 'model.temprature' [unknown_key] (Did you mean 'temperature'?)",
            "agent.yaml:4: error: runtime.max_turns must be a whole number, not 'x' [bad_value]",
            "agent.yaml:5: error: skills must be a mapping [not_a_mapping] (It has keys such as 'dir', indented below it)",
            ".agent/agents/a/AGENT.md:3: error: Unknown key 'tols' [unknown_key] (Did you mean 'tools'?)",
        ),
    ),
    Row(
        name="settings with a secret",
        files={"agent.yaml": "model:\n  api_key: " + "sk-" + "a" * 30 + "\n"},
        says=(
            "agent.yaml:2: error: 'model.api_key' holds what looks like a secret; keys come only from environment variables [secret_in_file] (Remove it here, revoke the key if others could read the file, and set its variable, such as ANTHROPIC_API_KEY, in the environment)",
        ),
    ),
    Row(
        name="settings with a password",
        files={"agent.yaml": PASSWORD_FILE},
        says=(
            "agent.yaml:4: warning: model.providers.openai.base_url contains a password [password_in_file] (Set AGENT_MODEL_PROVIDERS_OPENAI_BASE_URL instead)",
        ),
    ),
    Row(
        name="settings with an empty section",
        files={"agent.yaml": "model:\n  provider:\n"},
        says=(
            "agent.yaml:2: error: model.provider has no value [no_value] (Add a value, or remove the line to use the default)",
        ),
    ),
    Row(
        name="settings that are a list",
        files={"agent.yaml": "- a\n"},
        says=(
            "agent.yaml:1: error: The file must be a mapping [not_a_mapping] (Start with a section such as `model:`)",
        ),
    ),
    Row(
        name="embeddings of a folder that is not there",
        files={"agent.yaml": "routing:\n  embeddings:\n    folder: models/small\n"},
        says=(
            "models/small: warning: Skills are ranked by words only: The folder 'models/small' for the embedding model does not exist [embeddings_unavailable] (Correct routing.embeddings.folder)",
        ),
    ),
    Row(
        name="embeddings of a server whose key is not set",
        files={
            "agent.yaml": "routing:\n  embeddings:\n    base_url: http://127.0.0.1:9/v1\n    api_key_env: NO_SUCH_VARIABLE\n"
        },
        says=(
            "warning: Skills are ranked by words only: Variable 'NO_SUCH_VARIABLE' is not set [embeddings_unavailable] (Set the key: export NO_SUCH_VARIABLE=\"…\")",
        ),
    ),
    Row(
        name="embeddings of a server and of a folder",
        files={
            "agent.yaml": "routing:\n  embeddings:\n    base_url: http://127.0.0.1:9/v1\n    folder: models/small\n"
        },
        says=(
            "agent.yaml:4: error: routing.embeddings.folder must be empty if base_url is set, not 'models/small' [bad_value]",
        ),
    ),
)
