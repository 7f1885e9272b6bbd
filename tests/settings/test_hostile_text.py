"""Any content of files and variables yields settings or a list of one-line problems."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from example_counts import examples
from metier.errors import ConfigError
from metier.settings.keys import all_leaves, variables_of
from metier.settings.resolution import load_settings

KEYS = sorted(all_leaves())
NAMES = sorted({name for key in KEYS for name in key.split(".")})
VARIABLES = sorted({name for key in KEYS for name in variables_of(key)})

values = st.one_of(st.text(), st.sampled_from(["null", "~", "all", "-1", "1e999", "9" * 5000, "[", "{}", "a: b", "*x"]))
yaml_lines = st.lists(
    st.tuples(st.sampled_from(["", "  ", "    ", "- "]), st.sampled_from([*NAMES, "x", "api_key"]), values).map(
        lambda parts: f"{parts[0]}{parts[1]}: {parts[2]}\n"
    )
).map(lambda lines: "".join(lines).encode("utf-8", "surrogatepass"))


def messages(content: bytes, environ: Mapping[str, str]) -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "agent.yaml").write_bytes(content)
        try:
            loaded = load_settings(flags={}, environ=environ, cwd=folder, home=folder, config=None)
        except ConfigError as error:
            return [problem.render() for problem in error.problems]
        return [warning.render() for warning in loaded.warnings]


def check_one_line_each(texts: list[str]) -> None:
    assert all(text.isprintable() for text in texts)
    assert all(len(text) < 600 for text in texts)


@given(st.one_of(st.binary(max_size=200), yaml_lines))
@example(b'"x\\n_key": "abc"\n')
@example(b'model: {"\\e[31mx": 1, name: "a\\nb", provider: "a\\nb"}\n')
@example(b"model:\n  max_tokens: " + b"9" * 5000)
@example(b"shell: {allowed_prefixes: " + b"x" * 5000 + b"}")
@example(b"? [a]\n: b\n")
@settings(max_examples=examples(150), deadline=None)
def test_any_file_yields_settings_or_problems(content: bytes) -> None:
    check_one_line_each(messages(content, {}))


@given(
    st.dictionaries(
        st.sampled_from([*VARIABLES, "AGENT_X", "AGENT_A\nB"]), st.text(st.characters(exclude_characters="\0"))
    )
)
@example({"AGENT_MODEL_NAME": "\udcff"})
@example({"AGENT_MODEL_MAX_TOKENS": "9" * 5000})
@example({"AGENT_SKILLS": "all,none,,"})
@settings(max_examples=examples(100), deadline=None)
def test_any_environment_yields_settings_or_problems(environ: dict[str, str]) -> None:
    check_one_line_each(messages(b"", environ))


@pytest.mark.parametrize("flag", ["model.nmae", "", "model", "model.providers"])
def test_unknown_flag_is_rejected(flag: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(flags={flag: "x"}, environ={}, cwd=tmp_path, home=tmp_path, config=None)

    assert [problem.render().split("[")[1].split("]")[0] for problem in caught.value.problems] == ["unknown_key"]


def test_invalid_queue_name_is_a_problem_with_a_message() -> None:
    (message,) = messages(b"", {"AGENT_WORKER_QUEUE": ":"})

    assert "must be a name of letters, digits, - and _, 63 at most, not ':'" in message
