"""Outside text is redacted in one module of the engine before it becomes a journal entry."""

import ast

from source_facts import SOURCE

REDACTORS = {"redact", "redact_body"}
ALLOWED = {
    ("redaction.py", "redact"),
    # Tools get it, because they save and truncate long output themselves.
    ("execution/step_execution.py", "redact"),
    # Requests to an embeddings service leave the machine and are no entries.
    ("skill_index.py", "redact"),
    # Whole requests and replies, as files for debugging.
    ("model/model_call.py", "redact_body"),
}


def test_only_the_redaction_module_of_the_engine_calls_the_redactor() -> None:
    engine = SOURCE / "engine"
    found = {
        (path.relative_to(engine).as_posix(), node.attr)
        for path in engine.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in REDACTORS
    }

    assert found == ALLOWED
