"""What every store works out of an entry: its checksum, the blobs it names, why it cannot stand there. Pure."""

import zlib
from collections.abc import Sequence

from metier.errors import StoreError
from metier.store.base import StoredEntry
from metier.store.failures import SeqTaken, StoreDamaged

_HEX_MASK = bytes(49 if chr(value) in "0123456789abcdef" else 32 for value in range(256))
_NOT_HEX = bytes(value if chr(value) in "0123456789abcdef" else 32 for value in range(256))
_DIGEST_LENGTH = 64
_ENOUGH_DIGITS = b"1" * _DIGEST_LENGTH


def checksum_of(run_id: str, entry: StoredEntry) -> int:
    return zlib.crc32(entry.data, zlib.crc32(f"{run_id}/{entry.seq}/{entry.kind}".encode()))


def find_digests(data: bytes) -> set[str]:
    """Every run of exactly 64 hexadecimal digits: what may be the digest of a blob."""
    if _ENOUGH_DIGITS not in data.translate(_HEX_MASK):  # most entries name none, and this is cheap
        return set()
    return {word.decode("ascii") for word in data.translate(_NOT_HEX).split() if len(word) == _DIGEST_LENGTH}


def build_misplaced(run_id: str, first_seq: int, *, last: int) -> StoreError:
    """Why an entry cannot stand at `first_seq` of a journal that ends at `last`."""
    if first_seq <= last:
        return SeqTaken(
            f"Run {run_id!r} already has an entry {first_seq}; its journal ends at {last}, and nothing was written",
            hint="Read the journal again: another process continued this run",
        )
    return build_damaged(run_id, last + 1, f"is missing, so entry {first_seq} was not written")


def build_damaged(run_id: str, seq: int, what: str) -> StoreDamaged:
    return StoreDamaged(
        f"Entry {seq} of run {run_id!r} {what}",
        hint="Restore the run store from a backup; this run cannot go on from here",
    )


def make_printable(text: str) -> str:
    """Text for people; what is not valid Unicode (an odd command line) cannot be stored and is shown as `?`."""
    return text.encode("utf-8", "replace").decode("utf-8")


def check_order(entries: Sequence[StoredEntry], first_seq: int) -> None:
    """Raises `ValueError` where entries do not follow each other from a place on: a mistake of the caller."""
    if first_seq < 1 or [entry.seq for entry in entries] != list(range(first_seq, first_seq + len(entries))):
        raise ValueError(f"Entries do not follow each other from {first_seq} on")


def check_terms(owner: str, seconds: float) -> None:
    """Raises `ValueError` for a lease that names no owner or no time: a mistake of the caller."""
    if not owner or seconds <= 0:
        raise ValueError("A lease needs the name of its owner and a time")
