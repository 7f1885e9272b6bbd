"""What a failed script probably lacked: a variable that its skill does not ask for, a package, or an option. Reads the
header of the script; runs nothing."""

import re
from collections.abc import Collection, Mapping

from metier.errors import ToolFailed
from metier.lazy_regex import lazy_regex
from metier.tools.process.environment import build_environment
from metier.tools.process.run import Outcome
from metier.tools.scripts.contract import ScriptFailed, ScriptLimits
from metier.tools.scripts.metadata import parse_script_metadata, read_script
from metier.tools.scripts.runner import ScriptCall

USAGE_ERROR = 2
"""The exit code of argument parsers for arguments that they do not take."""

_MISSING_MODULE = lazy_regex(r"ModuleNotFoundError: No module named '([\w.]+)'", re.ASCII)
_MIN_VARIABLE = 3
"""Shorter names of variables stand in other texts by chance."""
_PACKAGES = {
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "fitz": "pymupdf",
    "googleapiclient": "google-api-python-client",
    "pptx": "python-pptx",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Packages whose module has another name."""


def find_lack(outcome: Outcome, call: ScriptCall, environ: Mapping[str, str]) -> ScriptFailed | None:
    """The failure in words that say what to change; nothing where the script's own words must do."""
    stderr = outcome.stderr.text
    stdout = outcome.stdout.last(ScriptLimits().stdout_tail_bytes).strip()
    name, allowed = call.script.name, call.package.definition.permissions_env
    if variable := find_withheld_variable(stderr, environ, allowed):
        message = (
            f"Env var {variable!r} not in allowlist: the script asks for it, and 'permissions: env:' of skill"
            f" {call.package.definition.name!r} does not name it"
        )
        tail = outcome.stderr.last(ScriptLimits().stderr_tail_bytes).strip()
        return ScriptFailed("permission_denied", f"{message}\nstderr: {tail}", stdout=stdout)
    package = find_missing_package(stderr)
    beside = {path.stem for path in call.script.path.parent.glob("*.py")}
    if package and package not in beside:
        declared = _list_declared(call)
        return ScriptFailed("execution_failed", describe_missing_package(package, script=name, declared=declared))
    return None


def rejects_json_flag(outcome: Outcome) -> bool:
    """The script read its arguments, did not know `--json`, and did nothing else."""
    return outcome.exit_code == USAGE_ERROR and "--json" in outcome.stderr.text


def find_withheld_variable(stderr: str, environ: Mapping[str, str], allowed: Collection[str]) -> str:
    """The variable that a script failed for: the agent has it, the skill does not ask for it, the error names it."""
    passed = build_environment(environ, allowed)
    words = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", stderr))
    names = (name for name in environ if name not in passed and len(name) >= _MIN_VARIABLE)
    return min((name for name in names if name in words), default="")


def find_missing_package(stderr: str) -> str:
    """The package to add for the module that the script did not find; empty where it found all."""
    found = _MISSING_MODULE.findall(stderr)
    if not found:
        return ""
    module = str(found[-1]).partition(".")[0]
    return _PACKAGES.get(module, module.replace("_", "-"))


def describe_missing_package(package: str, *, script: str, declared: Collection[str]) -> str:
    """One sentence with the line to write."""
    wanted = ", ".join(f'"{name}"' for name in (*declared, package))
    return (
        f"Script {script!r} needs the package {package!r}, which its header does not name: write"
        f" `# dependencies = [{wanted}]` between `# /// script` and `# ///` at its top (PEP 723)"
    )


def _list_declared(call: ScriptCall) -> list[str]:
    try:
        metadata = parse_script_metadata(read_script(call.script.path).decode("utf-8", "replace"))
    except ToolFailed:
        return []
    return [str(requirement) for requirement in metadata.dependencies]
