"""A script's environment: its own packages from the agent's index, without its influence."""

import hashlib
import io
import os
import tarfile
import zipfile
from pathlib import Path
from typing import cast

import anyio
import pytest
from pydantic import JsonValue

from metier.definitions.skills.skill import load_skill
from metier.skills.package import SkillPackage
from metier.tools.base import ToolContext
from metier.tools.scripts.active_scripts import ScriptCatalog
from metier.tools.scripts.runner import ScriptEnvironments, ScriptRunner
from metier.tools.scripts.script_tools import build_script_tools
from metier.tools.toolbox import Toolbox

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SCRIPT = """# /// script
# requires-python = ">=3.12"
# dependencies = ["greeting>=1"]
# ///
import json, greeting, sys
print(json.dumps([greeting.VERSION, sys.prefix != sys.base_prefix]))
"""


class Lab:
    """One skill with one script, and a folder of wheels as index."""

    def __init__(self, folder: Path) -> None:
        self.skill = folder / "notes"
        self.wheels = folder / "wheels"
        self.environments = folder / "environments"
        (self.skill / "scripts").mkdir(parents=True)
        (self.skill / "SKILL.md").write_text("---\nname: notes\ndescription: A test.\n---\n")
        self.wheels.mkdir()
        self.environ = {
            **os.environ,
            "UV_FIND_LINKS": str(self.wheels),
            "UV_NO_INDEX": "1",
            "UV_OFFLINE": "1",
            "UV_CACHE_DIR": str(folder / "cache"),
        }

    def write(self, name: str, text: str) -> None:
        (self.skill / "scripts" / name).write_text(text)

    def toolbox(self) -> Toolbox:
        definition = load_skill(self.skill).skill
        assert definition is not None
        package = SkillPackage(definition=definition, folder=self.skill, source="workspace")
        environments = ScriptEnvironments(folder=self.environments, environ=self.environ)
        runner = ScriptRunner(environments=environments, environ=self.environ)
        return Toolbox(build_script_tools(ScriptCatalog([package]), runner))

    async def run(self, script: str = "main") -> dict[str, JsonValue]:
        context = ToolContext(workspace=self.skill)
        result = await self.toolbox().call("script_run", {"skill_name": "notes", "script_name": script}, context)
        return cast("dict[str, JsonValue]", result.output)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def write_wheel(folder: Path, version: str) -> str:
    """Write a pure Python wheel with one module and return its hash."""
    folder.mkdir(exist_ok=True)
    path = folder / f"greeting-{version}-py3-none-any.whl"
    info = f"greeting-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("greeting.py", f"VERSION = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: greeting\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", f"greeting.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build_lock(version: str, digest: str, *, name: str = "greeting") -> str:
    return f"""version = 1
revision = 3
requires-python = ">=3.12"

[manifest]
requirements = [{{ name = "{name}", specifier = ">=1" }}]

[[package]]
name = "{name}"
version = "{version}"
source = {{ registry = "https://index.invalid/simple" }}
wheels = [
    {{ url = "https://index.invalid/{name}-{version}-py3-none-any.whl", hash = "sha256:{digest}" }},
]
"""


async def test_dependencies_are_installed_once_from_the_index_of_the_agent(lab: Lab) -> None:
    write_wheel(lab.wheels, "1.0.0")
    lab.write("main.py", SCRIPT)

    first = await lab.run()
    (lab.wheels / "greeting-1.0.0-py3-none-any.whl").unlink()
    second = await lab.run()

    assert first["result"] == second["result"] == ["1.0.0", True]
    assert len(list(lab.environments.iterdir())) == 1


async def test_script_without_packages_has_an_isolated_environment(lab: Lab) -> None:
    find = "import json, sys\nfrom importlib.util import find_spec\n"
    lab.write(
        "main.py", f"{find}print(json.dumps([sys.prefix, find_spec('pydantic') is None, find_spec('json') is None]))"
    )

    prefix, without_pydantic, without_json = cast("list[JsonValue]", (await lab.run())["result"])

    (environment,) = lab.environments.iterdir()
    assert (prefix, without_pydantic, without_json) == (str(environment), True, False)


async def test_concurrent_first_runs_share_one_environment(lab: Lab) -> None:
    write_wheel(lab.wheels, "1.0.0")
    lab.write("main.py", SCRIPT)
    answers: list[dict[str, JsonValue]] = []

    async def run() -> None:
        answers.append(await lab.run())

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(run)

    assert [answer["result"] for answer in answers] == [["1.0.0", True]] * 4
    assert len(list(lab.environments.iterdir())) == 1


async def test_lock_next_to_the_script_determines_the_version(lab: Lab) -> None:
    digest = write_wheel(lab.wheels, "1.0.0")
    write_wheel(lab.wheels, "2.0.0")
    lab.write("free.py", SCRIPT)
    lab.write("main.py", SCRIPT)
    lab.write("main.py.lock", build_lock("1.0.0", digest))

    assert (await lab.run("free"))["result"] == ["2.0.0", True]
    assert (await lab.run("main"))["result"] == ["1.0.0", True]
    assert (lab.skill / "scripts/main.py.lock").read_text() == build_lock("1.0.0", digest)


async def test_package_with_a_hash_that_differs_from_the_lock_is_rejected(lab: Lab) -> None:
    write_wheel(lab.wheels, "1.0.0")
    lab.write("main.py", SCRIPT)
    lab.write("main.py.lock", build_lock("1.0.0", "0" * 64))

    answer = await lab.run()

    assert answer["error"] == "execution_failed"
    assert "ash" in str(answer["message"])


async def test_lock_that_does_not_cover_a_dependency_is_reported(lab: Lab) -> None:
    lab.write("main.py", SCRIPT)
    lab.write("main.py.lock", build_lock("1.0.0", "0" * 64, name="other"))

    answer = await lab.run()

    assert answer["error"] == "execution_failed"
    assert "The lock main.py.lock does not cover 'greeting'" in str(answer["message"])


async def test_settings_file_next_to_the_script_cannot_redirect_the_index(lab: Lab, tmp_path: Path) -> None:
    write_wheel(lab.wheels, "1.0.0")
    write_wheel(tmp_path / "evil", "9.0.0")
    lab.write("main.py", SCRIPT)
    lab.write("uv.toml", f"find-links = [{str(tmp_path / 'evil')!r}]\n")
    lab.write("pyproject.toml", f"[tool.uv]\nfind-links = [{str(tmp_path / 'evil')!r}]\n")
    lab.write(".env", "UV_FIND_LINKS=evil\n")

    assert (await lab.run())["result"] == ["1.0.0", True]


async def test_source_distribution_is_not_built_because_building_runs_code(lab: Lab, tmp_path: Path) -> None:
    files = {
        "PKG-INFO": "Metadata-Version: 1.0\nName: greeting\nVersion: 1.0.0\n",
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": f"open({str(tmp_path / 'built')!r}, 'w')\n",
    }
    with tarfile.open(lab.wheels / "greeting-1.0.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"greeting-1.0.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    lab.write("main.py", SCRIPT)

    answer = await lab.run()

    assert answer["error"] == "execution_failed"
    assert "could not be prepared\nstderr:" in str(answer["message"])
    assert not (tmp_path / "built").exists()


REFUSED = {
    "tool.uv": (
        'dependencies = []\n[tool.uv]\nexclude-newer = "2026-01-01T00:00:00Z"',
        "permission_denied",
        "[tool.uv]",
    ),
    "sources": ('dependencies = []\n[tool.uv.sources]\nx = { url = "http://x" }', "permission_denied", "[tool.uv]"),
    "address": ('dependencies = ["x @ https://host/x.whl"]', "permission_denied", "names its own address"),
    "git": ('dependencies = ["x @ git+https://host/x"]', "permission_denied", "names its own address"),
    "option": ('dependencies = ["--find-links=https://host"]', "execution_failed", "is not valid"),
    "path": ('dependencies = ["./x"]', "execution_failed", "is not valid"),
    "python": ('requires-python = ">=3.99"', "execution_failed", "needs Python '>=3.99'"),
    "toml": ("dependencies = [", "execution_failed", "not valid TOML"),
    "type": ('dependencies = "x"', "execution_failed", "not a list of strings"),
    "compatible": ('requires-python = "~=2.7"', "execution_failed", "needs Python '~=2.7'"),
    "excluded": ('requires-python = "!=3.*,>2"', "execution_failed", "needs Python '!=3.*,>2'"),
    "one part": ('requires-python = "~=3"', "execution_failed", "'requires-python' is not valid: '~=3'"),
    "specifier": ('requires-python = "new"', "execution_failed", "'requires-python' is not valid"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
async def test_excessive_or_invalid_metadata_prevents_the_script_from_running(lab: Lab, case: str) -> None:
    metadata, code, message = REFUSED[case]
    lines = "".join(f"# {line}\n" for line in metadata.splitlines())
    lab.write("main.py", f"# /// script\n{lines}# ///\nopen('../ran', 'w')\nprint('{{}}')\n")

    answer = await lab.run()

    assert answer["error"] == code
    assert message in str(answer["message"])
    assert not (lab.skill / "ran").exists()


async def test_metadata_with_windows_line_endings_is_read(lab: Lab) -> None:
    write_wheel(lab.wheels, "1.0.0")
    lab.write("main.py", "")
    (lab.skill / "scripts/main.py").write_bytes(SCRIPT.replace("\n", "\r\n").encode())

    assert (await lab.run())["result"] == ["1.0.0", True]


async def test_missing_package_is_named_in_the_failure(lab: Lab) -> None:
    lab.write("main.py", SCRIPT)

    answer = await lab.run()

    assert answer["error"] == "execution_failed"
    assert "greeting" in str(answer["message"])
    assert [path.name for path in lab.environments.iterdir()] == []


async def test_cache_folder_that_cannot_be_created_is_reported(lab: Lab) -> None:
    lab.write("main.py", "print('{}')")
    lab.environments.write_text("a file is in the way")

    answer = await lab.run()

    assert answer["error"] == "execution_failed"
    assert "cannot hold the script's packages" in str(answer["message"])
