"""`agent redact`: a filter that redacts a text like the event log does. Works in chunks."""

import codecs
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, NamedTuple

import typer

from metier.errors import UsageError
from metier.telemetry.environment_secrets import list_secret_values
from metier.telemetry.redaction import RedactionStream, build_redactor
from metier.telemetry.sanitize import escape_json, sanitize

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_CHUNK_BYTES = 65_536
_MAX_LINE = 1_048_576
"""Maximum characters to buffer of a line; a longer line is written in parts."""


class Position(NamedTuple):
    """A finding and its position in the redacted text; lines and columns count from 1."""

    kind: str
    line: int
    column: int


@app.command(help="Redact secrets in a text.")
def redact(
    file: Annotated[str, typer.Argument(help="File to read; `-` is stdin.")] = "-",
    as_json: Annotated[bool, typer.Option("--json", help="Print the text and the kinds of secrets found.")] = False,
    names: Annotated[
        list[str] | None, typer.Option("--names", help="Additional name of a secret value (repeatable).")
    ] = None,
) -> None:
    stream = build_redactor(values=list_secret_values(os.environ), names=names or ()).stream()
    with _open(file) as source:
        pieces = _redacted(_sanitized(_decoded(source, file)), stream)
        if as_json:
            _print_json(pieces, stream)
        else:
            for piece in pieces:
                sys.stdout.write(piece)
                # Discarded, so that the findings of a long text do not fill the memory.
                stream.take_found()
    sys.stdout.flush()


def _open(file: str) -> BinaryIO:
    if file == "-":
        # Not closed with the block, because the interpreter closes stdin itself.
        return open(sys.stdin.fileno(), "rb", closefd=False)
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: str, error: OSError) -> UsageError:
    reason = (error.strerror or type(error).__name__).lower()
    return UsageError(f"File '{file}' cannot be read: {reason}", hint="Pass a text file, or pipe text to the command")


def _decoded(source: BinaryIO, file: str) -> Iterator[str]:
    # Incremental, because a chunk may end in the middle of a character.
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while True:
        try:
            chunk = source.read(_CHUNK_BYTES)
        except OSError as error:
            raise _unreadable(file, error) from error
        yield decoder.decode(chunk, final=not chunk)
        if not chunk:
            return


def _sanitized(chunks: Iterator[str]) -> Iterator[str]:
    """Yield whole lines, sanitized, so that no terminal sequence is split."""
    pending: list[str] = []
    pending_length = 0
    for chunk in chunks:
        end = chunk.rfind("\n") + 1
        if end or pending_length > _MAX_LINE:
            yield sanitize("".join((*pending, chunk[:end])))
            pending, pending_length = [], 0
        pending.append(chunk[end:])
        pending_length += len(chunk) - end
    yield sanitize("".join(pending))


def _redacted(chunks: Iterator[str], stream: RedactionStream) -> Iterator[str]:
    for chunk in chunks:
        yield stream.feed(chunk)
    yield stream.close()


def _print_json(pieces: Iterator[str], stream: RedactionStream) -> None:
    """Print one JSON object, and its text chunk by chunk."""
    places: list[Position] = []
    line, column, offset = 1, 1, 0
    sys.stdout.write('{"text": "')
    for piece in pieces:
        for finding in stream.take_found():
            before = piece[: finding.start - offset]
            newlines = before.count("\n")
            at = len(before) - before.rfind("\n") if newlines else column + len(before)
            places.append(Position(finding.kind, line + newlines, at))
        newlines = piece.count("\n")
        column = len(piece) - piece.rfind("\n") if newlines else column + len(piece)
        line, offset = line + newlines, offset + len(piece)
        # Without its quotes, because all pieces together are one JSON string.
        sys.stdout.write(escape_json(json.dumps(piece, ensure_ascii=False)[1:-1]))
    sys.stdout.write(f'", "found": {json.dumps([place._asdict() for place in places])}}}\n')
