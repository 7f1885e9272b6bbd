"""Read one of our own Markdown definitions strictly: a front matter that is YAML, a body, every problem."""

from pathlib import Path

from msgspec import Struct

from metier.definitions.files.contained_path import read_contained
from metier.definitions.problems import Problem
from metier.definitions.text.fields import Fields
from metier.definitions.text.front_matter import read_front_matter
from metier.definitions.text.yaml_text import Mapping, Plain, plain_value

MAX_FILE_BYTES = 4 * 1024 * 1024


class Document(Struct, frozen=True):
    fields: Fields
    body: str
    body_line: int
    data: bytes = b""
    """The bytes that all of this was read from."""


def load_document(file: Path, *, within: Path | None = None) -> Document:
    """Never raises: what is wrong with the file is in `fields.problems`. No link leads out of `within`, or of the
    file's own folder.
    """
    try:
        data = read_contained(file, within=within or file.parent, limit=MAX_FILE_BYTES)
    except OSError as error:
        return _without_text(file, "unreadable", f"The file cannot be read: {error.strerror}")
    return parse_document(data, file=file)


def parse_document(data: bytes, *, file: Path) -> Document:
    """The same from bytes; `file` is where problems are said to be."""
    if len(data) > MAX_FILE_BYTES:
        return _without_text(file, "file_too_large", f"The file is larger than {MAX_FILE_BYTES} bytes")
    front = read_front_matter(data, file=str(file), strict=True)
    mapping = front.mapping or Mapping((), 1)
    fields = Fields(mapping, file=str(file), strict=True, problems=list(front.problems))
    return Document(fields, front.body, front.body_line, data)


def require_text(fields: Fields, key: str) -> str:
    """The text, or nothing and an error."""
    value = fields.text(key)
    if not value:
        fields.report("error", f"missing_{key}", f"Field {key!r} is missing", line=fields.first_line)
    return value or ""


def read_free_form(fields: Fields, key: str) -> dict[str, Plain]:
    """A mapping whose keys are up to the author."""
    entry = fields.find(key)
    if entry is None:
        return {}
    value = plain_value(entry.value)
    if isinstance(value, dict):
        return value
    fields.report("error", "not_a_mapping", f"Field {key!r} must be a mapping", line=entry.line)
    return {}


def _without_text(file: Path, code: str, message: str) -> Document:
    problem = Problem(severity="error", code=code, message=message, file=str(file), line=1)
    return Document(Fields(Mapping((), 1), file=str(file), strict=True, problems=[problem]), "", 1)
