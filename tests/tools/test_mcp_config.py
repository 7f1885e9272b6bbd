"""`.agent/mcp.json`: accepted entries, rejected ones with their line, and variables."""

import json
from pathlib import Path

import pytest

from metier.definitions.problems import Problem
from metier.errors import ConfigError
from metier.tools.mcp.servers import McpConfig, choose_servers, expand_server, list_server_secrets, load_mcp_config


def load(folder: Path, text: str) -> McpConfig:
    file = folder / "mcp.json"
    file.write_text(text, encoding="utf-8")
    return load_mcp_config(file, workspace=file.parent)


def load_servers(folder: Path, **servers: object) -> McpConfig:
    return load(folder, json.dumps({"mcpServers": servers}))


def test_servers_of_both_kinds_are_read(tmp_path: Path) -> None:
    config = load_servers(
        tmp_path,
        time={"command": "uvx", "args": ["mcp-server-time"], "env": {"A": "b"}, "cwd": "sub", "type": "stdio"},
        docs={"url": "https://docs.example/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}, "type": "http"},
    )

    time, docs = config.servers
    assert (time.command, time.args, dict(time.env), time.cwd) == ("uvx", ("mcp-server-time",), {"A": "b"}, "sub")
    assert (docs.url, dict(docs.headers)) == ("https://docs.example/mcp", {"Authorization": "Bearer ${TOKEN}"})
    assert config.warnings == ()


def test_missing_file_defines_no_servers(tmp_path: Path) -> None:
    assert load_mcp_config(tmp_path / "mcp.json", workspace=tmp_path) == McpConfig()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[1]", "not_a_mapping"),
        ("{", "not_json"),
        ("{}", "missing_mcpServers"),
        ('{"mcpServers": []}', "not_a_mapping"),
        ('{"mcpServers": {"a b": {"command": "x"}}}', "invalid_name"),
        ('{"mcpServers": {"a/b": {"command": "x"}}}', "invalid_name"),
        ('{"mcpServers": {"a": "x"}}', "not_a_mapping"),
        ('{"mcpServers": {"a": {}}}', "no_target"),
        ('{"mcpServers": {"a": {"command": "x", "url": "http://x"}}}', "no_target"),
        ('{"mcpServers": {"a": {"command": ["x"]}}}', "not_text"),
        ('{"mcpServers": {"a": {"command": "x", "args": "y"}}}', "not_a_list"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"A": 1}}}}', "not_text"),
        ('{"mcpServers": {"a": {"command": "x\\u0000"}}}', "not_text"),
        ('{"mcpServers": {"a": {"command": "x", "headers": {}}}}', "wrong_key"),
        ('{"mcpServers": {"a": {"url": "http://x", "args": []}}}', "wrong_key"),
        ('{"mcpServers": {"a": {"url": "file:///etc/passwd"}}}', "no_address"),
        ('{"mcpServers": {"a": {"url": "http://x", "type": "sse"}}}', "unknown_type"),
        ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', "duplicate_key"),
        ("[" * 100_000, "too_deep"),
    ],
)
def test_unusable_entries_are_named(tmp_path: Path, text: str, code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)

    problems = [problem for problem in caught.value.problems if isinstance(problem, Problem)]
    assert code in [problem.code for problem in problems]


def test_every_problem_is_listed_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, '{"mcpServers": {\n"one": {},\n"two": {"command": "x", "args": 1}}}')

    lines = [problem.line for problem in caught.value.problems if isinstance(problem, Problem)]
    assert lines == [2, 3]


def test_keys_of_other_programs_cause_a_warning_and_have_no_effect(tmp_path: Path) -> None:
    config = load(tmp_path, '{"inputs": [], "mcpServers": {"a": {"command": "x", "alwaysAllow": ["*"], "commnd": 1}}}')

    assert [warning.code for warning in config.warnings] == ["unknown_key"] * 3
    assert "Did you mean 'command'?" in [warning.hint for warning in config.warnings]
    assert len(config.servers) == 1


def test_variables_are_expanded_with_defaults(tmp_path: Path) -> None:
    (server,) = load_servers(
        tmp_path,
        a={"command": "${BIN:-run}", "args": ["--key=${KEY}", "$PLAIN"], "env": {"T": "${KEY}-${KEY}"}, "cwd": "${D}"},
    ).servers

    expanded = expand_server(server, {"KEY": "k", "D": "sub"})

    assert (expanded.command, expanded.args, dict(expanded.env), expanded.cwd) == (
        "run",
        ("--key=k", "$PLAIN"),
        {"T": "k-k"},
        "sub",
    )


def test_an_unset_variable_is_an_error_with_its_name_and_position(tmp_path: Path) -> None:
    (server,) = load_servers(tmp_path, a={"url": "https://x/mcp", "headers": {"X": "${NOT_THERE}"}}).servers

    with pytest.raises(ConfigError) as caught:
        expand_server(server, {})

    assert "'NOT_THERE'" in caught.value.message
    assert "mcp.json:1" in caught.value.problems[0].render()


def test_servers_are_selected_by_name_and_an_unknown_name_is_rejected(tmp_path: Path) -> None:
    config = load_servers(tmp_path, one={"command": "x"}, two={"command": "x"}, off={"command": "x", "disabled": True})

    assert [server.name for server in choose_servers(config, "all")] == ["one", "two"]
    assert choose_servers(config, "none") == ()
    assert [server.name for server in choose_servers(config, ("two",))] == ["two"]
    with pytest.raises(ConfigError, match="No MCP server is called 'twoo'") as caught:
        choose_servers(config, ("twoo",))
    assert caught.value.hint == "Did you mean 'two'?"


def test_values_passed_to_servers_are_secrets(tmp_path: Path) -> None:
    config = load_servers(
        tmp_path,
        a={"command": "x", "env": {"API_KEY": "literal", "MODE": "fast", "T": "${VALUE}"}},
        b={"url": "https://x/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
    )

    assert set(list_server_secrets(config.servers, {"VALUE": "v", "TOKEN": "t"})) == {"literal", "v", "t"}


def test_the_digest_covers_everything_that_determines_the_started_program(tmp_path: Path) -> None:
    definitions: list[dict[str, object]] = [
        {"command": "x"},
        {"command": "y"},
        {"command": "x", "args": ["1"]},
        {"command": "x", "env": {"A": "1"}},
        {"command": "x", "cwd": "sub"},
        {"url": "http://x"},
        {"url": "http://x", "headers": {"A": "1"}},
    ]
    servers = [load_servers(tmp_path, a=definition).servers[0] for definition in definitions]

    digests = {server.digest(tmp_path) for server in servers}

    assert len(digests) == len(definitions)
    assert servers[0].digest(tmp_path) != servers[0].digest(tmp_path / "other")
