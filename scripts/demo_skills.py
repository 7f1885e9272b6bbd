"""Put the demo skills into the package. `demos/basic_demo_skills` has the originals, and git has only these.

A build hook of hatchling: a wheel gets the files from the originals. An editable install imports `src/metier` itself,
so there the files are copied into `src/metier/bundled`, which git ignores. `./dev` and the tests update the copies.
"""

import shutil
from pathlib import Path
from typing import Any, override

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[1]


def list_demo_skills(root: Path) -> list[Path]:
    """The folders of the originals. Raises `FileNotFoundError` if there are none: a build must not leave them out."""
    originals = root / "demos/basic_demo_skills"
    if skills := sorted(file.parent for file in originals.glob("*/SKILL.md")):
        return skills
    raise FileNotFoundError(f"No skills in '{originals}'")


def copy_demo_skills(root: Path) -> None:
    """Update the copies. Writes changed files only, because a test or a run may be reading them."""
    for skill in list_demo_skills(root):
        copy = root / "src/metier/bundled" / skill.name
        originals, copies = _list_files(skill), _list_files(copy)
        for name in copies - originals:
            (copy / name).unlink()
        for name in originals:
            if name not in copies or (skill / name).read_bytes() != (copy / name).read_bytes():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(skill / name, copy / name)


def _list_files(folder: Path) -> set[Path]:
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder) for path in files}


class DemoSkills(BuildHookInterface[Any]):
    @override
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if version == "editable":
            copy_demo_skills(root)
            return
        for skill in list_demo_skills(root):
            build_data["force_include"][str(skill)] = f"metier/bundled/{skill.name}"


if __name__ == "__main__":
    copy_demo_skills(ROOT)
