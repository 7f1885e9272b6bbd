"""The scripts of the active skills by name, and the limits, error codes and results of the script tools."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.definitions.names import canonical_name, canonical_script_name, check_skill_id
from metier.definitions.skills.scripts import FOLDER, Script, discover_scripts
from metier.definitions.skills.skill import SkillDefinition
from metier.errors import InvalidName, ToolFailed
from metier.skills.package import SkillPackage
from metier.telemetry.excerpt import cut_end
from metier.tools.base import Schema, ToolResult

type ScriptErrorCode = Literal[
    "not_found", "invalid_name", "args_too_large", "timeout", "parse_error", "execution_failed", "permission_denied"
]

_CODES: tuple[str, ...] = get_args(ScriptErrorCode.__value__)

_SHOWN_NAME = 80

RESPONSE_SCHEMA: Schema = {
    "type": "object",
    "properties": {
        "success": {"type": "boolean"},
        "message": {"type": "string"},
        "error": {"type": ["string", "null"]},
    },
    "required": ["success", "message"],
}


class ScriptLimits(Struct, frozen=True, kw_only=True):
    timeout_seconds: float = 60
    max_output_bytes: int = 1_048_576
    max_args: int = 100
    max_args_bytes: int = 4096
    stderr_tail_bytes: int = 500
    """Number of bytes of standard error to quote in a failure."""
    stdout_tail_bytes: int = 2000
    """Number of bytes of standard output to quote in a failure."""

    def narrow(self, skill: SkillDefinition) -> "ScriptLimits":
        """Apply the limits of a skill that are lower than the host's."""
        return replace(
            self,
            timeout_seconds=min(self.timeout_seconds, skill.timeout_seconds or self.timeout_seconds),
            max_output_bytes=min(self.max_output_bytes, skill.max_output_bytes or self.max_output_bytes),
        )


class ScriptFailed(ToolFailed):
    """A script tool failed with one of its error codes."""

    def __init__(self, code: ScriptErrorCode, message: str, *, stdout: str = "") -> None:
        super().__init__(message, code=code)
        self.stdout = stdout
        """The end of the script's output before it failed."""


def parse_skill_name(name: str) -> str:
    """Return the canonical name of a skill. Raises `ScriptFailed` with `invalid_name`."""
    try:
        check_skill_id(name)
    except InvalidName as error:
        raise ScriptFailed("invalid_name", f"Invalid skill name: {_shown(name)}") from error
    return canonical_name(name)


def parse_script_name(name: str) -> str:
    """Return a script's file name: `status.py` for `Status`. Raises `ScriptFailed` with `invalid_name`."""
    try:
        return canonical_script_name(name)
    except InvalidName as error:
        raise ScriptFailed("invalid_name", f"Invalid script name: {_shown(name)}") from error


def check_args(args: list[str], limits: ScriptLimits) -> None:
    """Raise `ScriptFailed` for too many or too long arguments, or characters that can't be passed to a process."""
    if len(args) > limits.max_args:
        raise ScriptFailed("args_too_large", f"Too many arguments: {len(args)} (max {limits.max_args})")
    for position, arg in enumerate(args, start=1):
        # The system passes arguments as bytes that end with a zero byte, and UTF-8 has no lone surrogates.
        if "\0" in arg or any("\ud800" <= character <= "\udfff" for character in arg):
            raise ScriptFailed("execution_failed", f"Argument {position} contains a character that cannot be passed on")
    size = sum(len(arg.encode()) for arg in args)
    if size > limits.max_args_bytes:
        raise ScriptFailed("args_too_large", f"Arguments too long: {size} bytes (max {limits.max_args_bytes})")


def add_json_flag(args: list[str]) -> list[str]:
    """Add `--json` unless it is there, before a `--`, which ends the options."""
    options = args[: args.index("--")] if "--" in args else args
    if "--json" in options:
        return args
    return [*options, "--json", *args[len(options) :]]


def build_success(result: JsonValue, message: str) -> ToolResult:
    return ToolResult(ok=True, output={"success": True, "result": result, "message": message})


def build_failure(error: ToolFailed) -> ToolResult:
    code = error.code if error.code in _CODES else "execution_failed"
    message = error.sentence
    printed: dict[str, JsonValue] = {"stdout": error.stdout} if isinstance(error, ScriptFailed) and error.stdout else {}
    return ToolResult(
        ok=False,
        output={"success": False, "error": code, "message": message, **printed},
        error=message,
        meta={"code": code},
    )


def _shown(name: str) -> str:
    return repr(cut_end(name, _SHOWN_NAME))


class ScriptCatalog:
    """Finds skills and scripts by the names that models write: in any case, `_` for `-`, with or without `.py`."""

    def __init__(self, packages: Sequence[SkillPackage]) -> None:
        self._packages: dict[str, SkillPackage] = {}
        for package in packages:
            self._packages.setdefault(canonical_name(package.definition.name), package)
        # A skill is also found by its folder's name, unless several skills have the same.
        folders = Counter(canonical_name(package.folder.name) for package in packages)
        for package in packages:
            self._packages.setdefault(canonical_name(package.definition.id), package)
            if folders[canonical_name(package.folder.name)] == 1:
                self._packages.setdefault(canonical_name(package.folder.name), package)
        self._shown = tuple(dict.fromkeys(package.definition.name for package in packages))

    def list_scripts(self, skill_name: str | None) -> dict[str, tuple[Script, ...]]:
        names = self._shown if skill_name is None else (self.find_package(skill_name).definition.name,)
        listed = {name: discover_scripts(self.get_package(name).definition) for name in names}
        return listed if skill_name is not None else {name: scripts for name, scripts in listed.items() if scripts}

    def find_package(self, skill_name: str) -> SkillPackage:
        """Return a skill's package. Raises `ScriptFailed`: `invalid_name` or `not_found`."""
        package = self._packages.get(parse_skill_name(skill_name))
        if package is None:
            raise ScriptFailed("not_found", f"Skill {skill_name!r} not loaded or installed")
        return package

    def get_package(self, name: str) -> SkillPackage:
        return self._packages[canonical_name(name)]

    def get_script(self, skill_name: str, script_name: str) -> tuple[SkillPackage, Script]:
        """Return a script and its skill's package.

        Raises `ScriptFailed`: `invalid_name`, `not_found`, or `permission_denied` for a symbolic link.
        """
        file_name = parse_script_name(script_name)
        package = self.find_package(skill_name)
        for script in discover_scripts(package.definition):
            if script.name == file_name:
                return package, script
        if (package.folder / FOLDER / file_name).is_symlink():
            raise ScriptFailed("permission_denied", f"Script {script_name!r} is a symbolic link")
        raise ScriptFailed("not_found", f"Script {script_name!r} not found in skill {package.definition.name!r}")
