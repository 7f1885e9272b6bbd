"""Read one of our own Markdown definitions strictly: a front matter that is YAML, a body, every problem."""

from pathlib import Path

from msgspec import Struct

from metier.definitions.files.contained_path import read_contained
from metier.definitions.problems import Problem, has_errors
from metier.definitions.text.front_matter import read_front_matter
from metier.definitions.text.yaml_text import Mapping

MAX_FILE_BYTES = 4 * 1024 * 1024


class Document(Struct, frozen=True, kw_only=True):
    file: str
    root: Mapping = Mapping((), 1)
    """The front matter."""
    problems: tuple[Problem, ...] = ()
    body: str = ""
    body_line: int = 1
    data: bytes = b""
    """The bytes that all of this was read from."""

    @property
    def is_unreadable(self) -> bool:
        """Nothing of the front matter could be read, and that is reported."""
        return not self.root.entries and has_errors(self.problems)


def load_document(file: Path, *, within: Path | None = None) -> Document:
    """Never raises: what is wrong with the file is in `problems`. No link leads out of `within`, or of the file's own
    folder.
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
    return Document(
        file=str(file),
        # A problem of the whole front matter is at the top of the file.
        root=Mapping(front.mapping.entries if front.mapping else (), 1),
        problems=front.problems,
        body=front.body,
        body_line=front.body_line,
        data=data,
    )


def _without_text(file: Path, code: str, message: str) -> Document:
    problem = Problem(severity="error", code=code, message=message, file=str(file), line=1)
    return Document(file=str(file), problems=(problem,))
