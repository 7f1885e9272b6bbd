"""Attacks by a repository, none of which succeeds. Every case goes through `agent skill add`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.skills.conftest import Machine, Repository

MANIFEST = "---\nname: notes\ndescription: Takes notes.\n---\nText.\n"
FILE, LINK, MODULE = "100644", "120000", "160000"


def check_nothing_installed(machine: Machine) -> None:
    assert machine.registry.skills == {}
    assert not machine.home.visible("notes").exists()
    assert not list(machine.home.staging.iterdir())


def add(machine: Machine, repository: Repository, *args: str) -> str:
    """Try to install; it must be refused and leave nothing."""
    result = machine.agent("add", repository.url, "--allow-file", "--yes", *args)

    assert result.code != 0
    check_nothing_installed(machine)
    return result.err


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside", "SKILL.md"])
def test_symbolic_link_is_refused(machine: Machine, notes: Repository, target: str) -> None:
    (notes.path / "link.md").symlink_to(target)
    notes.commit({})

    assert "'link.md' is a symbolic link" in add(machine, notes)


def test_submodule_is_refused(machine: Machine, notes: Repository) -> None:
    commit = notes.git("rev-parse", "HEAD")
    notes.git("update-index", "--add", "--cacheinfo", f"{MODULE},{commit},vendor")
    notes.git("commit", "--quiet", "-m", "submodule")

    assert "'vendor' is a submodule" in add(machine, notes)


@pytest.mark.parametrize(
    "name",
    [b".git", b".GIT", b"..", b"-rf", b"--upload-pack=x", b"a\nb", b"a\\b", b"NUL", b"con.py", b"bad\xff", b"x.pyc"],
)
def test_odd_file_name_is_refused(machine: Machine, make_repository: Callable[..., Repository], name: bytes) -> None:
    repository = make_repository()
    repository.commit_tree({name: (FILE, repository.blob("x")), b"SKILL.md": (FILE, repository.blob(MANIFEST))})

    assert "is refused" in add(machine, repository)


def test_case_collision_is_refused(machine: Machine, make_repository: Callable[..., Repository]) -> None:
    repository = make_repository()
    manifest = repository.blob(MANIFEST)
    repository.commit_tree(
        {b"README.md": (FILE, manifest), b"ReadMe.md": (FILE, manifest), b"SKILL.md": (FILE, manifest)}
    )

    assert "differ only in case" in add(machine, repository)


def test_name_with_a_slash_in_one_tree_entry_is_refused(
    machine: Machine, make_repository: Callable[..., Repository]
) -> None:
    repository = make_repository()
    repository.commit_tree({b"../../x": (FILE, repository.blob("x")), b"SKILL.md": (FILE, repository.blob(MANIFEST))})

    add(machine, repository)


def test_more_files_than_allowed_are_refused(machine: Machine, notes: Repository) -> None:
    blob = notes.blob("x")
    entries = {b"f%05d" % number: (FILE, blob) for number in range(10_000)}
    notes.commit_tree({b"SKILL.md": (FILE, notes.blob(MANIFEST)), **entries})

    refused = add(machine, notes)
    assert "more than 2000 files" in refused
    assert "--max-files" in refused


def test_repository_with_many_skills_lists_its_choices(machine: Machine, notes: Repository) -> None:
    skill = "---\nname: {0}\ndescription: Does {0}.\n---\n\nDo it.\n"
    notes.git("rm", "-q", "SKILL.md")
    notes.commit({f"skills/{name}/SKILL.md": skill.format(name) for name in ("pdf", "docx")})

    refused = add(machine, notes)

    assert "Add --pick NAME,NAME or --all; available: docx, pdf\n" in refused
    assert ".staging" not in refused
    assert machine.agent("add", f"{notes.url}#skills/pdf", "--allow-file", "-y").code == 0


def test_oversized_files_and_packages_are_rejected(machine: Machine, notes: Repository) -> None:
    notes.commit({"a.bin": b"\0" * 700_000, "b.bin": b"\1" * 700_000})

    assert "more than 1048576" in add(machine, notes, "--max-megabytes", "1")

    notes.commit({"a.bin": b"\0" * 2_000_000})

    assert "'a.bin' has 2000000 bytes" in add(machine, notes, "--max-megabytes", "1")


def test_hooks_filters_and_settings_of_a_repository_do_not_run(
    machine: Machine, notes: Repository, tmp_path: Path
) -> None:
    trap = tmp_path / "trapped"
    for hook in ("post-checkout", "post-merge", "reference-transaction", "pre-auto-gc"):
        (notes.path / ".git/hooks").mkdir(exist_ok=True)
        (notes.path / ".git/hooks" / hook).write_text(f"#!/bin/sh\ntouch {trap}\n")
        (notes.path / ".git/hooks" / hook).chmod(0o755)
    notes.git("config", "filter.evil.smudge", f"touch {trap}")
    notes.git("config", "core.fsmonitor", f"touch {trap}")
    notes.commit({".gitattributes": "* filter=evil\n", ".gitmodules": '[submodule "x"]\n path = x\n url = ext::sh\n'})
    trap.unlink(missing_ok=True)

    result = machine.agent("add", notes.url, "--allow-file", "--yes")

    assert result.code == 0
    assert not trap.exists()
    assert (machine.home.visible("notes") / ".gitattributes").read_text() == "* filter=evil\n"


def test_git_settings_of_user_and_machine_are_ignored(
    machine: Machine, notes: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = machine.workspace
    trap = elsewhere / "trapped"
    config = elsewhere / "gitconfig"
    lines = (
        "[core]",
        f"fsmonitor = touch {trap}",
        f"sshCommand = touch {trap}",
        f'[url "ext::touch {trap}"]',
        "insteadOf = file:",
    )
    config.write_text("\n".join(lines))
    (Path.home() / ".gitconfig").write_text(config.read_text())
    for name, value in {
        "GIT_CONFIG_GLOBAL": str(config),
        "GIT_DIR": str(elsewhere),
        "GIT_EXEC_PATH": str(elsewhere),
        "GIT_TEMPLATE_DIR": str(elsewhere),
        "GIT_CONFIG_PARAMETERS": "'core.hooksPath'='/x'",
        "GIT_ALLOW_PROTOCOL": "ext",
    }.items():
        monkeypatch.setenv(name, value)

    result = machine.agent("add", notes.url, "--allow-file", "--yes")

    assert result.code == 0, result.err
    assert not trap.exists()


def test_lfs_pointer_is_kept_unchanged_and_reported(machine: Machine, notes: Repository) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 12\n"
    notes.commit({"assets/model.bin": pointer, ".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n"})

    result = machine.agent("add", notes.url, "--allow-file", "--yes", "--json")

    assert (machine.home.visible("notes") / "assets/model.bin").read_text() == pointer
    assert result.json["report"]["large_file_pointers"] == ["assets/model.bin"]


def test_files_have_the_bytes_of_the_commit_regardless_of_attributes(machine: Machine, notes: Repository) -> None:
    notes.git("config", "core.autocrlf", "false")
    notes.commit({"crlf.txt": b"a\r\nb\n\x00\xff"})
    notes.commit({".gitattributes": "* text=auto eol=crlf ident export-ignore export-subst\n"})
    commit = notes.git("rev-parse", "HEAD")

    machine.agent("add", notes.url, "--allow-file", "--yes")

    assert (machine.home.visible("notes") / "crlf.txt").read_bytes() == b"a\r\nb\n\x00\xff"
    assert machine.registry.skills["notes"].commit_sha == commit


@pytest.mark.parametrize("digits", [7, 12, 39])
@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_hexadecimal_ref_is_a_commit_and_an_equally_named_tag_or_branch_is_an_error(
    machine: Machine, notes: Repository, digits: int, kind: str
) -> None:
    wanted = notes.git("rev-parse", "HEAD")[:digits]
    hijacker = notes.commit({"evil.txt": "x"})
    notes.git(kind, wanted, hijacker)

    result = machine.agent("add", f"{notes.url}@{wanted}", "--allow-file", "--yes")

    assert result.code == 1
    assert "can be a shortened commit" in result.err
    assert machine.registry.skills == {}
    named = f"refs/{'tags' if kind == 'tag' else 'heads'}/{wanted}"
    assert machine.agent("add", f"{notes.url}@{named}", "--allow-file", "--yes").code == 0


def test_commit_in_capital_letters_is_that_commit(machine: Machine, notes: Repository) -> None:
    wanted = notes.git("rev-parse", "HEAD")
    hijacker = notes.commit({"evil.txt": "x"})
    notes.git("update-ref", f"refs/tags/{wanted.upper()}", hijacker)

    result = machine.agent("add", f"{notes.url}@{wanted.upper()}", "--allow-file", "--yes", "--json")

    assert result.json["commit"] == wanted


@pytest.mark.parametrize("below", ["", "assets/", "assets/deep/x.git/"])
@pytest.mark.parametrize(
    "parts", [("HEAD", "objects/a", "refs/heads/b"), ("head", "Objects/a", "REFS/b"), ("HEAD", "commondir")]
)
def test_tree_that_contains_a_bare_repository_is_rejected(
    machine: Machine, notes: Repository, below: str, parts: tuple[str, ...]
) -> None:
    notes.commit({f"{below}{name}": "ref: refs/heads/main\n" for name in parts})

    result = machine.agent("add", notes.url, "--allow-file", "--yes")

    assert result.code != 0
    assert "is a repository of its own" in result.err
    assert machine.registry.skills == {}


def test_tag_named_like_a_full_commit_does_not_replace_that_commit(machine: Machine, notes: Repository) -> None:
    wanted = notes.git("rev-parse", "HEAD")
    hijacker = notes.commit({"evil.txt": "x"})
    notes.git("update-ref", f"refs/tags/{wanted}", hijacker)

    result = machine.agent("add", f"{notes.url}@{wanted}", "--allow-file", "--yes", "--json")

    assert result.json["commit"] == wanted
    assert not (machine.home.visible("notes") / "evil.txt").exists()


def test_short_commit_is_not_a_pin(machine: Machine, notes: Repository) -> None:
    short = notes.git("rev-parse", "HEAD")[:12]

    result = machine.agent("add", f"{notes.url}@{short}", "--allow-file", "--yes")

    assert result.code == 1
    assert "all 40 digits" in result.err


def test_text_of_an_author_cannot_send_control_sequences_to_the_terminal(
    machine: Machine, make_repository: Callable[..., Repository]
) -> None:
    repository = make_repository()
    repository.commit({"SKILL.md": '---\nname: notes\ndescription: "a\\e[2Jb\\u202ec"\n---\nhi\u200bdden\n'})

    result = machine.agent("add", repository.url, "--allow-file", "--yes", "--json")

    assert result.code == 0, result.err
    assert "\x1b" not in result.err
    assert "\u202e" not in result.err
    assert result.json["report"]["hidden_characters"] == ["SKILL.md:5: U+200B ZERO WIDTH SPACE"]


def test_local_folder_passes_the_same_checks(machine: Machine, make_folder: Callable[..., Path]) -> None:
    folder = make_folder("notes")
    (folder / "nested").mkdir()
    for fault, message in (("link", "symbolic link"), ("pipe", "neither a file"), (".git", "git keeps its own")):
        path = folder / "nested" / fault
        if fault == "link":
            path.symlink_to("/etc/passwd")
        elif fault == "pipe":
            os.mkfifo(path)
        else:
            path.write_text("gitdir: /elsewhere\n")

        result = machine.agent("add", str(folder), "--yes")

        assert result.code == 1
        assert message in result.err
        check_nothing_installed(machine)
        path.unlink()
    assert machine.agent("add", str(folder), "--yes").code == 0
