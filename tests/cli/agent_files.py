"""Agents for tests: `AGENT.md` files in a workspace."""

from pathlib import Path


def add_agent(workspace: Path, agent_id: str, *front: str, body: str = "You check facts.") -> Path:
    file = workspace / ".agent" / "agents" / agent_id / "AGENT.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ["---", f"name: {agent_id.rpartition('/')[2]}", *front, "---", "", body, ""]
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def add_task(workspace: Path, task_id: str) -> None:
    file = workspace / ".agent" / "tasks" / task_id / "TASK.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"---\nname: {task_id}\n---\nDo it.\n", encoding="utf-8")
