"""A row of the table of problems: the contents of a project and the expected messages. Nothing here runs anything."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    files: Mapping[str, str | bytes] = field(default_factory=dict[str, str | bytes])
    """Paths below the project and what is in them."""
    prepare: Callable[[Path], None] | None = None
    """A file that can't be written as text."""
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


def task(front: str, body: str = "Do it.\n", **steps: str) -> dict[str, str | bytes]:
    others = {f".agent/tasks/t/{name}.md": text for name, text in steps.items()}
    return {TASK: f"---\nname: T\n{front}---\n{body}", **others}


def skill(front: str, body: str = "") -> dict[str, str | bytes]:
    return {SKILL: f"---\n{front}---\n{body}"}


def shared(text: str | bytes) -> dict[str, str | bytes]:
    """Return a skill in a folder shared with other tools, where usable parts are used."""
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


def leading_out(root: Path) -> None:
    (root / ".agent/agents").mkdir(parents=True)
    (root / ".agent/agents/out").symlink_to("../../..")


def deep(root: Path) -> None:
    (root / ".agent/agents" / "/".join("abcdefghijklm")).mkdir(parents=True)


def linked_step(root: Path) -> None:
    (root / ".agent/tasks/t/two.md").symlink_to("TASK.md")


def file_as_folder(root: Path) -> None:
    (root / ".agent").mkdir()
    (root / ".agent/agents").write_text("")


def folder_as_policy(root: Path) -> None:
    (root / POLICY).mkdir(parents=True)
