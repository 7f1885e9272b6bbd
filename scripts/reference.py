"""Write the generated docs: reference, package diagram, program table, llms.txt. `--check` fails if one is stale."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from api_reference import render_http, render_python
from layers import render_layers
from llms import render_llms
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields
from program_starts import render_page

from metier import errors
from metier.cli.help import dress, load_texts
from metier.cli.root import ALIASES, COMMANDS, load_command
from metier.events.record import SCHEMA_VERSION, EventRecord, payload_types
from metier.settings.keys import Leaf, all_leaves

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTE = "<!-- Written by `./dev docs`. Do not edit. -->\n\n"
SHARED_OPTIONS = {"--json": "Print JSON.", "--config": "Settings file to use."}
SETTINGS_HEAD = """# Settings

Every key of `agent.yaml`. The environment variable of a key is `AGENT_` and the key in capitals: `runtime.max_turns` is
`AGENT_RUNTIME_MAX_TURNS`. See [configuration](../configuration.md).
"""


def main(arguments: list[str]) -> int:
    # Rendered once each, because the help of a command is assembled when the command is first built.
    texts = {page: render() for page, render in pages().items()}
    stale = [page for page, text in texts.items() if not is_current(page, text)]
    if "--check" in arguments:
        for page in stale:
            print(f"error: docs/{page} is stale\nhint: Run `./dev docs` and commit the result", file=sys.stderr)
        return 1 if stale else 0
    for page in stale:
        (DOCS / page).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / page).write_text(_get_head(page) + texts[page], encoding="utf-8")
        print(f"wrote docs/{page}", file=sys.stderr)
    return 0


def pages() -> dict[str, Callable[[], str]]:
    return {
        "reference/commands.md": render_commands,
        "reference/settings.md": render_settings,
        "reference/events.md": render_events,
        "reference/exit-codes.md": render_exit_codes,
        "reference/http.md": render_http,
        "reference/python.md": render_python,
        "layers.svg": render_layers,
        "llms.txt": render_llms,
        "contributing/programs.md": render_page,
    }


def is_current(page: str, text: str) -> bool:
    path = DOCS / page
    return path.exists() and path.read_text(encoding="utf-8") == _get_head(page) + text


def _get_head(page: str) -> str:
    return NOTE if page.startswith("reference/") else ""


def render_commands() -> str:
    parts = [
        "# Commands\n",
        "`agent help COMMAND` prints the same text. Options that many commands share:\n",
        "\n".join(f"- `{names}`: {text}" for names, text in SHARED_OPTIONS.items()) + "\n",
    ]
    for name in COMMANDS:
        if name not in ALIASES:
            command = load_command(name)
            dress(command, f"agent {name}")
            parts.extend(_command_sections(command, f"agent {name}"))
    return "\n".join(parts)


def _command_sections(command: Any, path: str) -> Iterator[str]:  # noqa: ANN401 - Typer exports no command type
    yield f"## `{path}`\n\n{(command.help or '').strip()}\n"
    shown = [parameter for parameter in command.params if not parameter.hidden]
    shared = [f"`{names}`" for names in map(_parameter_names, shown) if names in SHARED_OPTIONS]
    own = [_parameter_line(parameter) for parameter in shown if _parameter_names(parameter) not in SHARED_OPTIONS]
    if own:
        yield "\n".join(own) + "\n"
    if shared:
        yield f"{'Also accepts' if own else 'Accepts'} {' and '.join(shared)}.\n"
    text = load_texts().get(path)
    if text is not None:
        lines = [f"{example.line}{f'  # {example.note}' if example.note else ''}" for example in text.examples]
        yield "\n".join(["```sh", *lines, "```", ""])
    for name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            yield from _command_sections(child, f"{path} {name}")


def _parameter_names(parameter: Any) -> str:  # noqa: ANN401
    if parameter.param_type_name == "argument":
        return str(parameter.name.upper())
    return ", ".join([*parameter.opts, *parameter.secondary_opts])


def _parameter_line(parameter: Any) -> str:  # noqa: ANN401
    default = parameter.default
    note = ""
    if parameter.required:
        note = " Required."
    elif default not in (None, False, "", (), []) and not callable(default):
        note = f" Default: `{default}`."
    text = (getattr(parameter, "help", None) or "").replace("\n", " ")
    return f"- `{_parameter_names(parameter)}`: {text}{note}"


def render_settings() -> str:
    parts = [SETTINGS_HEAD]
    section = ""
    for leaf in all_leaves().values():
        if (name := leaf.key.partition(".")[0]) != section:
            section = name
            parts.append(f"## {section}\n")
        parts.append(f"### `{leaf.key}`\n\n{leaf.description}\n\n{_setting_facts(leaf)}\n")
    return "\n".join(parts)


def _setting_facts(leaf: Leaf) -> str:
    facts = [leaf.type.capitalize()]
    if leaf.allowed:
        facts.append(", ".join(f"`{word}`" if leaf.type.startswith("word") else word for word in leaf.allowed))
    if leaf.shown_default not in ("", '""', "null", "[]", "{}"):
        facts.append(f"default `{leaf.shown_default}`")
    facts += [f"also `{name}`" for name in leaf.variables[1:]]
    return "; ".join(facts) + "."


def render_events() -> str:
    parts = [
        "# Events\n\nEvery line of `events.jsonl` is one record; `event_type` names its payload.\n",
        f"Schema version {SCHEMA_VERSION}.\n",
        "## The record\n",
        _fields(EventRecord),
    ]
    for name, payload in payload_types().items():
        parts.append(f"## `{name}`\n\n{(payload.__doc__ or '').strip()}\n")
        parts.append(_fields(payload))
    return "\n".join(parts)


def _fields(value: type[Struct]) -> str:
    lines = [f"{field.name}: {_type_name(field)}{_default(field)}" for field in fields(value)]
    return "\n".join(["```text", *lines, "```", ""]) if lines else ""


def _type_name(field: FieldInfo) -> str:
    annotation: Any = field.type
    annotation = annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation
    name = (
        annotation.__name__
        if isinstance(annotation, type) and not getattr(annotation, "__args__", ())
        else str(annotation)
    )
    name = re.sub(r"\bmetier\.(events\.\w+|decisions|messages)\.", "", name).replace("NoneType", "None")
    for noise in ("typing.", "pydantic.types."):
        name = name.replace(noise, "")
    name = re.sub(r"Optional\[Annotated\[datetime\.datetime, .*\]\]", "datetime | None", name)
    return "JsonValue" if name == "Any" else name


def _default(field: FieldInfo) -> str:
    if field.required:
        return ""
    default = field.default if field.default_factory is NODEFAULT else field.default_factory()
    return f" = {default!r}"


def render_exit_codes() -> str:
    named = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.MetierError)]
    rows = [[str(cls.exit_code), f"`{cls.__name__}`", (cls.__doc__ or "").splitlines()[0]] for cls in named]
    meaning = [
        ["0", "done"], ["1", "failed"], ["2", "invalid usage or configuration"], ["3", "waiting for approval"],
        ["4", "waiting for input"], ["5", "denied by policy or not trusted"], ["6", "budget exceeded"],
        ["7", "turn or time limit"], ["8", "provider or API key error"], ["9", "sandbox unavailable"],
        ["10", "in use by another process, or decided before"], ["129, 130, 131, 143", "stopped by a signal"],
    ]  # fmt: skip
    return (
        "# Exit codes\n\n" + _table(["code", "meaning"], meaning)
        + "\n## Errors and their codes\n\n" + _table(["code", "error", "meaning"], sorted(rows))
    )  # fmt: skip


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(cell.replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
