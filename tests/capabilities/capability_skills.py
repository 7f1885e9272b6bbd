"""Skills with an `impl.py`, written to any folder."""

from pathlib import Path

ANSWER = "def execute(context):\n    return {'outputs': {'echo': dict(context.inputs)}}\n"


def write_skill(root: Path, name: str, *, contract: str = "", impl: str | None = ANSWER) -> Path:
    """A skill below `root`; `contract` is YAML for its front matter."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    head = f"name: {name}\ndescription: Skill {name} of a test.\n{contract.strip()}\n"
    (folder / "SKILL.md").write_text(f"---\n{head}---\n\n# {name}\n\nCall it.\n", encoding="utf-8")
    if impl is not None:
        (folder / "impl.py").write_text(impl, encoding="utf-8")
    return folder
