"""The instructions of a workspace: the files in `context/`, the agent, and project files such as `AGENTS.md`."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from metier.context.control import build_control_specs
from metier.context.layers import CAPS, LayerName, cap_conversation, cap_layer
from metier.context.operating import Family, Subjects, build_operating
from metier.context.outside_text import render_project
from metier.definitions.files.contained_path import is_absent, read_contained
from metier.definitions.problems import Problem
from metier.definitions.project_files import (
    Deny,
    ProjectFile,
    allow_all,
    load_nearby_files,
    load_personal_file,
    load_project_file,
)
from metier.engine.services import Instructions, LayerSource
from metier.errors import ConfigError
from metier.messages import Message
from metier.prompts.texts import load_text
from metier.runtime.cleaning import build_host_cleaner
from metier.runtime.host import Host, shorten_path
from metier.runtime.workspace.agents import ResolvedAgent
from metier.runtime.workspace.plugins import render_layers

FOLDER = "context"
FILES: dict[LayerName, str] = {
    "base": "system_prompt.md",
    "soul": "soul.json",
    "profile": "user_profile.json",
}
MAX_FILE_BYTES = 1_000_000
"""Maximum size of a file with instructions."""

PROJECT = "project:"
"""Prefix of the hash of a project file. Its text is pinned with the instructions of the run."""


class ExtraInput(Struct, frozen=True, kw_only=True):
    """Additional input of a run: the conversation before it, and the task step that it executes."""

    facts: str = ""
    summary: str = ""
    conversation: Sequence[Message] = ()
    step: str = ""


class _Layer(Struct, frozen=True):
    text: str
    source: LayerSource


def load_instructions(
    agent: ResolvedAgent,
    extra_input: ExtraInput | None = None,
    *,
    subjects: Subjects,
    family: Family,
    project: Sequence[ProjectFile] = (),
) -> Instructions:
    """Load the built-in instructions and those of the workspace. Raises `ConfigError` for an invalid file.

    `project` are the project files from `load_project`.
    """
    workspace = agent.host.workspace
    found = {name: _load(workspace, name) for name in FILES}
    if agent.definition is not None and agent.body:
        found["agent"] = _build("agent", agent.body, agent.data, file=shorten_path(agent.definition.file, workspace))
    if words := render_layers(agent.host):
        found["plugins"] = _build("plugins", words, words.encode(), file="")
    if words := render_project(project):
        found["project"] = _build_project(words, project)
    texts = {name: layer.text for name, layer in found.items() if layer is not None}
    given = extra_input or ExtraInput()
    return Instructions(
        operating=build_operating(subjects, family),
        control=build_control_specs(),
        base=texts.get("base", ""),
        safety=load_text("safety"),
        soul=texts.get("soul", ""),
        profile=texts.get("profile", ""),
        agent=texts.get("agent", ""),
        plugins=texts.get("plugins", ""),
        project=texts.get("project", ""),
        project_files={file.path: file.sha256 for file in project},
        facts=cap_layer("facts", given.facts).text,
        summary=cap_layer("summary", given.summary).text,
        conversation=cap_conversation(given.conversation),
        step=cap_layer("step", given.step).text,
        sources={name: layer.source for name, layer in found.items() if layer is not None},
    )


def describe_truncation(instructions: Instructions) -> tuple[Problem, ...]:
    """Warn about every layer whose file exceeds its limit."""
    return tuple(
        Problem(
            severity="warning",
            code="layer_cut",
            message=f"Layer {name!r} is cut: {source.left_out} characters are left out",
            file=source.file,
            hint=f"At most {CAPS[layer]} characters of it are used; shorten it, or make a skill of the rest",
        )
        for layer in CAPS
        for name, source in instructions.sources.items()
        if name == layer and source.left_out
    )


def get_context_problems(workspace: Path) -> dict[Path, tuple[Problem, ...]]:
    """List the problems of each existing file of `context/`."""
    found: dict[Path, tuple[Problem, ...]] = {}
    for layer, name in FILES.items():
        try:
            is_there = _load(workspace, layer) is not None
        except ConfigError as error:
            found[workspace / FOLDER / name] = tuple(each for each in error.problems if isinstance(each, Problem))
        else:
            found |= {workspace / FOLDER / name: ()} if is_there else {}
    return found


def _load(workspace: Path, layer: LayerName) -> _Layer | None:
    if is_absent(f"{workspace}/{FOLDER}/{FILES[layer]}"):  # fast path: few workspaces have it, and each run checks
        return None
    file = workspace / FOLDER / FILES[layer]
    try:
        data = read_contained(file, within=workspace, limit=MAX_FILE_BYTES)
    except (FileNotFoundError, IsADirectoryError):  # a folder is no instruction
        return None
    except OSError as error:
        raise _refuse(file, f"The file cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise _refuse(file, f"The file is larger than {MAX_FILE_BYTES} bytes")
    try:
        # Editors on Windows may write a byte order mark.
        text = data.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise _refuse(file, "The file is not UTF-8", line=data.count(b"\n", 0, error.start) + 1) from error
    if file.suffix == ".json" and text:
        _check_json(text, file)
    return _build(layer, text, data, file=shorten_path(file, workspace)) if text else None


def _check_json(text: str, file: Path) -> None:
    try:
        # Only a check: the model reads the text as it was written.
        json.loads(text)
    except json.JSONDecodeError as error:
        raise _refuse(file, f"The file is not JSON: {error.msg}", line=error.lineno) from error
    except RecursionError as error:
        raise _refuse(file, "The file is nested too deeply") from error


def _build(layer: LayerName, text: str, data: bytes, *, file: str) -> _Layer:
    capped = cap_layer(layer, text)
    source = LayerSource(file=file, sha256=hashlib.sha256(data).hexdigest(), left_out=capped.left_out)
    return _Layer(capped.text, source)


def _build_project(text: str, files: Sequence[ProjectFile]) -> _Layer:
    """Build the layer of project instructions. Each file is truncated separately, so that a long one hides no other."""
    capped = cap_layer("project", text)
    digest = hashlib.sha256("".join(file.sha256 for file in files).encode()).hexdigest()
    names = ", ".join(name for file in files for name in (_mark(file), *file.imports))
    left_out = capped.left_out + sum(file.left_out for file in files)
    return _Layer(capped.text, LayerSource(file=names, sha256=digest, left_out=left_out))


def _mark(file: ProjectFile) -> str:
    return file.path if file.is_own else f"{file.path} (not trusted)"


def _refuse(file: Path, message: str, *, line: int = 1) -> ConfigError:
    problem = Problem(severity="error", code="context_file", message=message, file=str(file), line=line)
    hint = "Fix or delete it; the file is optional"
    return ConfigError(f"'{file.name}' cannot be a layer of the prompt", hint=hint, problems=(problem,))


def load_project(host: Host, *, deny: Deny = allow_all) -> tuple[ProjectFile, ...]:
    """Load the user's own file, then that of the workspace, which takes precedence. Both are redacted and sanitized."""
    return _load_project(host, build_host_cleaner(host).text, deny=deny)


def _load_project(host: Host, clean: Callable[[str], str], *, deny: Deny = allow_all) -> tuple[ProjectFile, ...]:
    own = load_personal_file(host.home, clean=clean)
    shared = load_project_file(
        host.workspace, within=host.workspace, clean=clean, is_own=host.trust.is_trusted, deny=deny
    )
    return tuple(file for file in (own, shared) if file is not None)


def list_changed_project(host: Host, pins: Mapping[str, str], *, deny: Deny = allow_all) -> tuple[str, ...]:
    """List the pins of files that changed since the run started."""
    pinned = {name: digest for name, digest in pins.items() if name.startswith(PROJECT)}
    if not pinned:
        return ()
    now = {f"{PROJECT}{file.path}": file.sha256 for file in load_project(host, deny=deny)}
    return tuple(name for name, digest in pinned.items() if now.get(name) != digest)


def get_project_problems(host: Host) -> dict[Path, tuple[Problem, ...]]:
    """List the problems of the workspace's instructions, by file."""
    # Not redacted, because only the problems are used. The user's own file, in `~`, belongs to no workspace.
    files = [file for file in _load_project(host, lambda text: text) if not file.path.startswith("~")]
    return {host.workspace / file.path: file.problems for file in files}


class NearbyFiles(Struct, frozen=True, kw_only=True):
    """Finds the project files of folders that a run visits. Implements `engine.nearby_instructions.Nearby`."""

    workspace: Path
    clean: Callable[[str], str]
    is_own: bool
    deny: Deny = allow_all

    def find(self, path: str) -> tuple[ProjectFile, ...]:
        return load_nearby_files(path, workspace=self.workspace, clean=self.clean, is_own=self.is_own, deny=self.deny)
