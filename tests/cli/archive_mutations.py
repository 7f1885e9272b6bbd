"""Mutations of an exported run's file, all of which must be rejected. Those of members are signed again."""

import hashlib
import io
import json
import warnings
import zipfile
from collections.abc import Callable
from typing import Any, cast

type Members = dict[str, bytes]
MANIFEST = "manifest.json"
DIGEST = "a" * 64


def read_members(data: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return {name: file.read(name) for name in file.namelist()}


def write_members(
    members: Members, change: Callable[[zipfile.ZipInfo], None] = lambda _: None, *, comment: bytes = b""
) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for name, data in members.items():
            member = zipfile.ZipInfo(name)
            if name == "journal.jsonl":
                change(member)
            file.writestr(member, data, compress_type=member.compress_type)
        file.comment = comment
    return buffer.getvalue()


def sign(members: Members, **fields: object) -> Members:
    """Sign the archive like an attacker who knows the format."""
    own = {name: data for name, data in members.items() if name != MANIFEST}
    manifest = cast("dict[str, Any]", json.loads(members[MANIFEST]))
    manifest |= {"members": {name: hashlib.sha256(data).hexdigest() for name, data in own.items()}, **fields}
    del manifest["checksum"]
    manifest["checksum"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    return {MANIFEST: json.dumps(manifest).encode(), **own}


def added(name: str, data: bytes = b"x") -> Callable[[bytes], bytes]:
    return lambda old: write_members(sign({**read_members(old), name: data}))


def declared(**fields: object) -> Callable[[bytes], bytes]:
    return lambda old: write_members(sign(read_members(old), **fields))


def journal(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[bytes], bytes]:
    def mutate(old: bytes) -> bytes:
        members = read_members(old)
        lines = change(members["journal.jsonl"].splitlines())
        return write_members(sign({**members, "journal.jsonl": b"".join(line + b"\n" for line in lines)}))

    return mutate


def field(number: int, **fields: object) -> Callable[[bytes], bytes]:
    def change(lines: list[bytes]) -> list[bytes]:
        return [
            json.dumps({**json.loads(line), **fields}).encode() if at == number else line
            for at, line in enumerate(lines)
        ]

    return journal(change)


def marked(change: Callable[[zipfile.ZipInfo], None]) -> Callable[[bytes], bytes]:
    return lambda old: write_members(read_members(old), change)


def be_link(member: zipfile.ZipInfo) -> None:
    member.external_attr = 0o120777 << 16


def be_device(member: zipfile.ZipInfo) -> None:
    member.external_attr = 0o020666 << 16


def be_pipe(member: zipfile.ZipInfo) -> None:
    member.external_attr = 0o010666 << 16


def be_deflated(member: zipfile.ZipInfo) -> None:
    member.compress_type = zipfile.ZIP_DEFLATED


def have_extra(member: zipfile.ZipInfo) -> None:
    member.extra = b"\x75\x70\x04\x00\x01\x02\x03\x04"


def have_comment(member: zipfile.ZipInfo) -> None:
    member.comment = b"x"


def twice(old: bytes) -> bytes:
    buffer = io.BytesIO(old)
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "a") as file:
        warnings.simplefilter("ignore")
        file.writestr(zipfile.ZipInfo("run.json"), b"{}")
    return buffer.getvalue()


def without(name: str) -> Callable[[bytes], bytes]:
    return lambda old: write_members({key: data for key, data in read_members(old).items() if key != name})


def unsigned(name: str, data: bytes) -> Callable[[bytes], bytes]:
    return lambda old: write_members({**read_members(old), name: data})


MUTATIONS: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "no archive": lambda _: b"not an archive",
    "cut in half": lambda old: old[: len(old) // 2],
    "cut by one byte": lambda old: old[:-1],
    "without its first byte": lambda old: old[1:],
    "a byte turned in a member": lambda old: old.replace(b'"kind":"run_started"', b'"kind":"run_startee"', 1),
    "no directory": lambda old: old[: old.rindex(b"PK\x01\x02")],
    "comment": lambda old: write_members(read_members(old), comment=b"x"),
    "member twice": twice,
    "no manifest": without(MANIFEST),
    "no journal": without("journal.jsonl"),
    "no record": without("run.json"),
    "manifest that is no JSON": unsigned(MANIFEST, b"{"),
    "manifest that is a list": unsigned(MANIFEST, b"[]"),
    "empty manifest": unsigned(MANIFEST, b"{}"),
    "journal changed": unsigned("journal.jsonl", b"{}"),
    "record changed": unsigned("run.json", b"{}"),
    "member added": unsigned("extra.txt", b"x"),
    "other format": declared(format="other"),
    "newer version": declared(version=99),
    "run id with a path": declared(run_id="../../x"),
    "absolute run id": declared(run_id="/tmp"),
    "empty run id": declared(run_id=""),
    "run id with an escape": declared(run_id="a\x1b[2J"),
    "field that no manifest has": declared(surprise=True),
    "unknown member, signed": added("extra.txt"),
    "settings, signed": added("agent.yaml"),
    "rules, signed": added(".agent/policy.yaml"),
    "path out, signed": added("../../evil"),
    "absolute path, signed": added("/etc/evil"),
    "windows path, signed": added("..\\evil"),
    "database, signed": added("state.db"),
    "folder, signed": added("blobs/"),
    "blob without a digest, signed": added("blobs/x"),
    "blob under a path, signed": added(f"blobs/../{DIGEST}"),
    "blob with other bytes, signed": added(f"blobs/{DIGEST}"),
    "blob in capitals, signed": added(f"blobs/{DIGEST.upper()}"),
    "child without a journal, signed": added("children/x/run.json"),
    "child with an unknown member, signed": added("children/x/extra"),
    "child with a path, signed": added("children/../x/journal.jsonl"),
    "child below a child, signed": added("children/x/children/y/journal.jsonl"),
    "child without an id, signed": added("children//journal.jsonl"),
    "link": marked(be_link),
    "device": marked(be_device),
    "pipe": marked(be_pipe),
    "compressed member": marked(be_deflated),
    "further field of a member": marked(have_extra),
    "comment of a member": marked(have_comment),
    "empty journal, signed": journal(lambda _: []),
    "journal without a beginning, signed": journal(lambda lines: lines[1:]),
    "journal turned around, signed": journal(lambda lines: lines[::-1]),
    "two beginnings, signed": journal(lambda lines: [lines[0], *lines]),
    "line that is no JSON, signed": journal(lambda lines: [*lines, b"{"]),
    "unknown kind, signed": field(1, kind="surprise"),
    "unknown mode, signed": field(0, mode="wild"),
    "pins that are no text, signed": field(0, pins={"policy": 3}),
    "run that works for itself, signed": lambda old: field(
        0, parent_run_id=json.loads(read_members(old)[MANIFEST])["run_id"]
    )(old),
}
