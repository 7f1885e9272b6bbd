"""The public names, one by one: adding or losing one is a decision, not an accident."""

import inspect
import subprocess
import sys
from pathlib import Path

import metier

SURFACE = {
    "Agent": {"answer", "approvals", "approve", "cancel", "close", "deny", "resume", "run", "stream"},
    "RunResult": {
        "approvals", "artifacts", "cost", "folder", "message", "ok", "question", "raise_for_status", "reason",
        "run_id", "status", "text", "turns", "usage", "value", "waits_for",
    },
    "RunStream": {"result", "stop"},
}  # fmt: skip
"""Member names of the larger classes."""

NAMES = [
    "Agent", "AgentResponse", "Approval", "ApprovalClosed", "ConfigError", "Decision", "DuplicateMessageError",
    "Event", "ExecutionStatus", "MetierError", "Question", "ResumeTokenRefused", "RunFailed", "RunResult", "RunStream",
    "SkillNotFound", "TaskState", "TextDelta", "ToolContext", "ToolFailed", "Usage", "UsageError",
    "VersionConflictError", "create_agent_adapter", "create_executor", "create_run_router", "create_state_store",
    "execution_status_to_task_state", "generate_resume_token", "open", "redact_sensitive", "run_sync",
    "task_state_to_execution_status_value", "tool", "validate_resume_token",
]  # fmt: skip


def test_public_names_are_listed_and_documented() -> None:
    assert sorted(metier.__all__) == NAMES
    assert set(NAMES) <= set(dir(metier))
    for name in NAMES:
        assert inspect.getdoc(getattr(metier, name)), f"{name} has no docstring"


def test_importing_the_package_loads_none_of_its_packages() -> None:
    program = """
import sys
before = set(sys.modules)
import metier
loaded = {name for name in set(sys.modules) - before if not name.startswith("importlib") and name != "warnings"}
assert loaded == {"metier", "metier.version"}, loaded
try:
    metier.nothing
except AttributeError as error:
    assert "nothing" in str(error)
else:
    raise SystemExit("an unknown name was found")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr


def test_type_checkers_and_the_runtime_find_the_same_names() -> None:
    source = Path(metier.__file__).read_text("utf-8")
    checked = source[source.index("if TYPE_CHECKING:") : source.index("_HOMES")]
    declared = {line.split(" as ")[1].split()[0].rstrip(",") for line in checked.splitlines() if " as " in line}

    assert declared == set(NAMES)


def test_members_of_the_larger_classes_are_listed() -> None:
    for name, members in SURFACE.items():
        kind: type = getattr(metier, name)
        public = {each for each in dir(kind) if not each.startswith("_")}
        assert public == members, name
