"""Files of a task: attached by the user, or mentioned as `@path`.

Text is added to the input of the run, fenced with its path; pictures and PDF documents are shown to the model. A
mentioned file must be in the workspace, and the rules must allow the model to read it, because the text of a task may
come from elsewhere. A path that the user gives as an option may be anywhere.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from metier.approval.judge import RulePolicy
from metier.context.decoder import build_step
from metier.context.outside_text import ATTACHED_FILE, fence
from metier.definitions.files.contained_path import read_contained
from metier.errors import ToolFailed, UsageError
from metier.providers.options import OFFLINE
from metier.runtime.host import Host
from metier.runtime.model_providers import load_host_facts
from metier.runtime.present_policy import build_present_policy
from metier.runtime.requests import RunRequest
from metier.telemetry.sanitize import sanitize, sanitize_line
from metier.tools.base import Media
from metier.tools.files.file_text import decode
from metier.tools.media import get_media_type, prepare_media
from metier.tools.protected import SECRETS_REASON, protected, protected_name

READ = "Read"
MAX_FILE_BYTES = 20_000_000
MAX_TEXT_CHARACTERS = 100_000
"""Limit per file; the model should read longer files in parts."""
MAX_ATTACHED = 20

# Not within a word or a path: `user@host` and `/x/@types` are no mentions.
_MENTION = re.compile(r"(?<![\w@/])@(\"[^\"\n]+\"|[^\s\"'`<>|]+)")
_KINDS = r"\.(?:png|jpe?g|gif|webp)"
_PICTURE = re.compile(
    rf"""(?<!\S)(?:"([~./][^"\n]*{_KINDS})"|'([~./][^'\n]*{_KINDS})'|((?:~|\.{{0,2}}/)(?:\\.|[^\s"'\\])*{_KINDS}))(?!\S)""",
    re.IGNORECASE,
)
"""A path as a terminal pastes it when the user drops a picture: absolute or with `~`, quoted or with escaped spaces."""
_CLOSING = ".,;:!?)]}"


class Attached(Struct, frozen=True, kw_only=True):
    """The attached files of one task, and their problems."""

    texts: tuple[str, ...] = ()
    media: tuple[Media, ...] = ()
    missing: tuple[str, ...] = ()
    """Mentions that look like a path but match no file."""

    def add_to(self, request: RunRequest) -> RunRequest:
        context = "\n\n".join(piece for piece in (request.extra_context, *self.texts) if piece)
        return replace(request, extra_context=context, attachments=(*request.attachments, *self.media))


class TaskWords(Struct, frozen=True, kw_only=True):
    """The text of a task, its agent, and its origin."""

    text: str
    agent: str
    """ID of the agent, whose rules apply."""
    is_typed: bool = True
    """True if a user typed it at this machine. Then pasted pictures may be anywhere, and reading needs no approval."""


def attach_files(host: Host, words: TaskWords, *, images: Sequence[Path] = (), files: Sequence[Path] = ()) -> Attached:
    """Read the named and mentioned files. Raises `UsageError` for an unusable file.

    It blocks to read files and decode pictures, so call it in a thread if an event loop is running.
    """
    texts: list[str] = []
    media = [_prepare(_read(path), str(path)) for path in images]
    missing: list[str] = []
    for path in files:
        _add_file(_read(path), str(path), texts=texts, media=media)
    reader = _MentionReader(host, words)
    for name in list_mentions(words.text):
        data = reader.read(name)
        if data is None:
            # `@alice` is more likely a person than a missing file.
            missing += [name] if "/" in name or "." in name[1:] else []
        else:
            _add_file(data, name, texts=texts, media=media)
    found = [(path, _read(path)) for path in list_pasted(words.text)] if words.is_typed else []
    # By their first bytes: a pasted path that only ends like a picture stays plain text.
    media += [_prepare(data, path.name) for path, data in found if get_media_type(data)]
    return _build(texts, media, missing=missing)


class GivenFile(Struct, frozen=True):
    """A file that was sent with a message, as bytes."""

    name: str
    data: bytes


def attach_given(given: Sequence[GivenFile]) -> Attached:
    """Attach files that were sent with a message. Raises `UsageError` for an unusable one. Decoding pictures blocks."""
    texts: list[str] = []
    media: list[Media] = []
    for each in given:
        _add_file(_check_length(each.data, each.name), each.name, texts=texts, media=media)
    return _build(texts, media)


def _build(texts: Sequence[str], media: Sequence[Media], *, missing: Sequence[str] = ()) -> Attached:
    if len(texts) + len(media) > MAX_ATTACHED:
        raise UsageError(f"{len(texts) + len(media)} files are attached, and at most {MAX_ATTACHED} can be")
    return Attached(texts=tuple(texts), media=tuple(media), missing=tuple(missing))


def list_mentions(text: str) -> list[str]:
    """List the paths after `@`, each once, without the punctuation of the sentence."""
    written = [match[1] for match in _MENTION.finditer(text)]
    found = [each.strip('"') if each.startswith('"') else each.rstrip(_CLOSING) for each in written]
    return list(dict.fromkeys(name for name in found if name))


def list_pasted(text: str) -> list[Path]:
    """List existing pictures whose pasted paths are in the text."""
    return list(dict.fromkeys(_list_pasted(text)))


def _list_pasted(text: str) -> Iterator[Path]:
    for match in _PICTURE.finditer(text):
        written = match[1] or match[2] or re.sub(r"\\(.)", r"\1", match[3])
        path = Path(written).expanduser()
        if path.is_file():
            yield path


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            # One byte more shows that the file is too large. Its size is not asked for: a pipe or device has none.
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"File {str(path)!r} cannot be read: {error.strerror}", hint="Check the path") from error
    return _check_length(data, str(path))


class _MentionReader:
    """Reads the workspace files that a task mentions, if the agent may read them."""

    def __init__(self, host: Host, words: TaskWords) -> None:
        self._host = host
        self._words = words
        self._policy: RulePolicy | None = None

    def read(self, name: str) -> bytes | None:
        """Return the bytes; None if the file doesn't exist. Raises `UsageError` if the model may not read it."""
        workspace = self._host.workspace
        file = workspace / name
        real = os.path.relpath(file.resolve(), workspace.resolve())
        # Whatever the rules say: what is attached leaves the machine. The link and its target both count.
        if SECRETS_REASON in (protected_name(file.name), protected(name), protected(real)) and file.exists():
            raise UsageError(f"File {name!r} may hold secrets and is not attached", hint="Name another file")
        try:
            data = read_contained(file, within=workspace, limit=MAX_FILE_BYTES)
        except (OSError, ValueError):
            return None
        # Both names, because a link gives a denied file another name.
        for path in dict.fromkeys((os.path.normpath(name), real)):
            self._check(name, path)
        return _check_length(data, name)

    def _check(self, name: str, path: str) -> None:
        verdict = self._open_policy().explain(build_step(READ, {"path": path}, call_id="")).verdict
        if verdict.decision == "deny" or (verdict.decision == "ask" and not self._words.is_typed):
            hint = "`--file` attaches a file of your choice, whatever the rules say of reading"
            raise UsageError(f"File {name!r} is not attached: {verdict.reason}", hint=hint)

    def _open_policy(self) -> RulePolicy:
        """Build the policy on first use: most texts mention no file."""
        if self._policy is None:
            self._policy = build_present_policy(self._host, self._words.agent)
        return self._policy


def _check_length(data: bytes, name: str) -> bytes:
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"File {name!r} has more than {MAX_FILE_BYTES} bytes", hint="Attach a smaller one")
    return data


def _add_file(data: bytes, name: str, *, texts: list[str], media: list[Media]) -> None:
    """Add a file to the texts if it decodes as text, otherwise to the media, whose type its first bytes tell."""
    found = decode(data)
    if found is not None and not get_media_type(data):
        texts.append(_fence(found.text, name))
    else:
        media.append(_prepare(data, name))


def _fence(text: str, name: str) -> str:
    shown = sanitize(text[:MAX_TEXT_CHARACTERS])
    left = len(text) - MAX_TEXT_CHARACTERS
    note = f"\n[{left} more characters: read the file]" if left > 0 else ""
    # A quote in the name would end the attribute of the fence, and the rest would look like text outside of it.
    path = sanitize_line(name).replace('"', "'")
    return fence(f"{shown}{note}", tag=ATTACHED_FILE, attributes=f'path="{path}"')


def _prepare(data: bytes, name: str) -> Media:
    try:
        return prepare_media(data, name=Path(name).name)
    except ToolFailed as error:
        raise UsageError(error.message) from error


def can_see(host: Host) -> bool:
    """Return True if the host's model accepts pictures and documents, according to its facts."""
    provider = host.provider.name if host.provider is not None else host.settings.model.provider
    if provider == OFFLINE:
        return False
    return load_host_facts(host).get(provider, host.settings.model.name).takes_images
