"""The life of an installed skill, through the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from metier.errors import SkillError
from metier.skills.install.operations import Installer
from metier.skills.layout import InstallLimits
from metier.skills.skill_trust import digest_tree
from metier.skills.source import FolderSource

if TYPE_CHECKING:
    from tests.skills.conftest import Machine, Repository

FILE = "--allow-file"


def installed(machine: Machine) -> list[dict[str, object]]:
    """Return the rows of `agent skill list` for installed skills, without the bundled ones."""
    return [row for row in machine.agent("list", "--json").json if row["source"] != "bundled"]


def test_installed_skill_is_registered_with_commit_tree_and_file_hashes(machine: Machine, notes: Repository) -> None:
    commit = notes.git("rev-parse", "HEAD")

    result = machine.agent("add", notes.url, FILE, "--yes", "--json")

    entry = machine.registry.skills["notes"]
    digest = digest_tree(machine.home.visible("notes"))
    assert result.code == 0
    assert result.json["commit"] == entry.commit_sha == commit
    assert (entry.git_url, entry.branch, entry.tag, entry.trusted) == (notes.url, "main", None, True)
    assert entry.tree == entry.trusted_digest == digest.tree
    assert entry.files == digest.files
    assert entry.installed_path == str(machine.home.visible("notes"))
    assert result.json["report"]["scripts"] == ["scripts/find.py"]
    assert result.json["report"]["environment_read"] == ["NOTES_KEY"]


@pytest.mark.parametrize("ref", ["v1", "refs/tags/v1", "side", "COMMIT"])
def test_older_tag_branch_or_commit_is_fetched_exactly(machine: Machine, notes: Repository, ref: str) -> None:
    old = notes.git("rev-parse", "HEAD")
    notes.git("tag", "-a", "v1", "-m", "first")
    notes.git("branch", "side")
    notes.commit({"later.md": "x"})

    result = machine.agent("add", f"{notes.url}@{old if ref == 'COMMIT' else ref}", FILE, "--yes", "--json")

    assert result.json["commit"] == old
    assert not (machine.home.visible("notes") / "later.md").exists()


def test_ambiguous_ref_must_be_fully_qualified(machine: Machine, notes: Repository) -> None:
    notes.git("tag", "main")

    assert "both a branch and a tag" in machine.agent("add", f"{notes.url}@main", FILE, "--yes").err
    assert machine.agent("add", f"{notes.url}@refs/heads/main", FILE, "--yes").code == 0


def test_one_folder_of_a_repository_can_be_installed(
    machine: Machine, make_repository: Callable[..., Repository]
) -> None:
    repository = make_repository("collection")
    manifest = "---\nname: {}\ndescription: One of many.\n---\n"
    repository.commit({f"skills/{name}/SKILL.md": manifest.format(name) for name in ("one", "two")})
    (repository.path / "link").symlink_to("/etc")
    repository.commit({"README.md": "x"})

    assert machine.agent("add", f"{repository.url}#skills/two", FILE, "--yes").code == 0
    assert "no folder 'skills/three'" in machine.agent("add", f"{repository.url}#skills/three", FILE, "--yes").err
    assert "symbolic link" in machine.agent("add", repository.url, FILE, "--yes").err
    assert "holds 2 skills" in machine.agent("add", f"{repository.url}#skills", FILE, "--yes").err

    entry = machine.registry.skills["two"]
    assert entry.subdir == "skills/two"
    assert list(entry.files) == ["SKILL.md"]


def test_installation_without_a_terminal_requires_yes(machine: Machine, notes: Repository) -> None:
    result = machine.agent("add", notes.url, FILE)

    assert result.code == 2
    assert "scripts/find.py" in result.err
    assert "--yes" in result.err
    assert machine.registry.skills == {}

    assert machine.agent("add", notes.url, FILE, "--no-trust").code == 0
    assert machine.registry.skills["notes"].trusted is False
    assert machine.agent("add", notes.url, FILE, "--yes", "--no-trust").code == 2


def test_adding_the_same_skill_again_only_changes_trust(machine: Machine, notes: Repository) -> None:
    machine.agent("add", notes.url, FILE, "--no-trust")

    assert machine.agent("add", notes.url, FILE, "--no-trust", "--json").json["status"] == "unchanged"
    assert machine.agent("add", notes.url, FILE, "--yes", "--json").json["status"] == "updated"
    assert machine.registry.skills["notes"].trusted_digest is not None
    assert machine.agent("add", notes.url, FILE, "--yes", "--json").json["status"] == "unchanged"


def test_duplicate_name_is_rejected_and_another_name_can_be_chosen(machine: Machine, notes: Repository) -> None:
    machine.agent("add", notes.url, FILE, "--yes")
    notes.commit({"more.md": "x"})

    refused = machine.agent("add", notes.url, FILE, "--yes")
    other = machine.agent("add", notes.url, FILE, "--yes", "--name", "My_Notes")

    assert refused.code == 2
    assert "already installed" in refused.err
    assert other.code == 0
    assert machine.registry.skills["my-notes"].name == "My_Notes"
    assert [row["name"] for row in installed(machine)] == ["My_Notes", "notes"]


def test_folder_created_by_the_user_is_not_overwritten(machine: Machine, notes: Repository) -> None:
    machine.home.visible("notes").mkdir(parents=True)
    (machine.home.visible("notes") / "mine.md").write_text("mine")

    assert machine.agent("add", notes.url, FILE, "--yes").code == 2
    assert (machine.home.visible("notes") / "mine.md").read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["../x", "/abs", ".hidden", "~", "__pycache__", "a b", "x" * 65, "a\x00b", "a/b", "", "..", "é"]
)
def test_dangerous_name_is_rejected_before_any_effect(machine: Machine, notes: Repository, name: str) -> None:
    result = machine.agent("add", notes.url, FILE, "--yes", "--name", name)

    assert result.code == 2
    assert "is not allowed" in result.err
    assert not machine.home.root.exists()
    for command in ("info", "trust", "untrust", "create"):
        assert machine.agent(command, name).code == 2
    assert list(machine.workspace.iterdir()) == []


def test_invalid_manifest_is_rejected_with_its_problems(machine: Machine, notes: Repository) -> None:
    notes.commit({"SKILL.md": "---\nname: notes\n---\n\nKeep notes.\n"})
    broken = machine.agent("add", notes.url, FILE, "--yes")
    notes.commit({"SKILL.md": "# Notes\n\nKeep notes.\n"})
    bare = machine.agent("add", notes.url, FILE, "--yes")
    notes.commit({"SKILL.md": "---\nname: notes\ndescription: x\nmin_agent_base_version: 99.0\n---\n"})
    new = machine.agent("add", notes.url, FILE, "--yes")
    notes.commit({"SKILL.md": "---\nname: ../notes\ndescription: x\n---\n"})
    name = machine.agent("add", notes.url, FILE, "--yes")

    assert (broken.code, bare.code, new.code, name.code) == (2, 2, 1, 2)
    assert broken.err.startswith("SKILL.md:1: error: Field 'description' is missing")
    assert bare.err.startswith("SKILL.md:1: error: The file has no front matter")
    assert machine.registry.skills == {}
    assert "needs at least version 99.0" in new.err
    assert "--name" in name.err


def test_update_shows_both_commits_and_the_new_capabilities(machine: Machine, notes: Repository) -> None:
    machine.agent("add", notes.url, FILE, "--yes")
    old = notes.git("rev-parse", "HEAD")
    new = notes.commit({"scripts/send.py": "import requests\nrequests.post('https://drop.example.org')\n"})

    asked = machine.agent("update", "notes")
    assert asked.code == 2
    assert machine.registry.skills["notes"].commit_sha == old
    result = machine.agent("update", "Notes", "--yes", "--json")

    assert f"{old} -> {new}" in result.err
    assert result.json["status"] == "updated"
    assert result.json["diff"]["added"] == {
        "scripts": ["scripts/send.py"],
        "network": ["scripts/send.py: requests"],
        "hosts": ["drop.example.org"],
    }
    assert result.json["diff"]["files_added"] == ["scripts/send.py"]
    assert machine.registry.skills["notes"].commit_sha == new
    assert (machine.home.visible("notes") / "scripts/send.py").exists()
    assert machine.agent("update", "--all", "--yes", "--json").json[0]["status"] == "unchanged"
    assert list(machine.home.store.iterdir()) == list(machine.home.staging.iterdir()) == []


def test_update_warns_about_local_changes_and_discards_them(machine: Machine, notes: Repository) -> None:
    machine.agent("add", notes.url, FILE, "--yes")
    (machine.home.visible("notes") / "SKILL.md").write_text("mine")

    result = machine.agent("update", "notes", "--yes")

    assert "discards local changes: SKILL.md" in result.err
    assert machine.agent("verify").code == 0


def test_failed_update_leaves_the_old_skill(machine: Machine, notes: Repository) -> None:
    machine.agent("add", notes.url, FILE, "--yes")
    before = (machine.registry, digest_tree(machine.home.visible("notes")))
    notes.commit({"SKILL.md": "---\nname: [\n---\n"})
    (notes.path / "link").symlink_to("/etc")
    notes.commit({})

    assert machine.agent("update", "notes", "--yes").code == 1
    notes.path.rename(notes.path.with_name("gone"))
    assert machine.agent("update", "notes", "--yes").code == 1

    assert (machine.registry, digest_tree(machine.home.visible("notes"))) == before
    assert machine.agent("verify").code == 0


def test_pinned_commit_and_tag_are_not_updated(machine: Machine, notes: Repository) -> None:
    commit = notes.git("rev-parse", "HEAD")
    machine.agent("add", f"{notes.url}@{commit}", FILE, "--yes")
    notes.commit({"later.md": "x"})

    assert machine.agent("update", "notes", "--yes", "--json").json["status"] == "unchanged"
    assert machine.registry.skills["notes"].commit_sha == commit


def test_same_bytes_in_a_newer_commit_move_the_pin_and_keep_trust(machine: Machine, notes: Repository) -> None:
    machine.agent("add", notes.url, FILE, "--yes")
    new = notes.commit({}, "only a message")

    assert machine.agent("update", "notes", "--json").json["status"] == "unchanged"
    assert machine.registry.skills["notes"].commit_sha == new
    assert machine.registry.skills["notes"].trusted_digest == machine.registry.skills["notes"].tree


def test_remove_deletes_folder_and_entry(machine: Machine, notes: Repository) -> None:
    machine.agent("add", notes.url, FILE, "--yes")

    assert machine.agent("remove", "notes").code == 2
    assert machine.agent("remove", "NOTES", "--yes", "--json").json["status"] == "removed"

    assert machine.registry.skills == {}
    assert not machine.home.visible("notes").exists()
    assert machine.agent("remove", "notes", "--yes").code == 2


def test_changed_byte_ends_trust_until_the_user_trusts_again(machine: Machine, notes: Repository) -> None:
    machine.agent("add", notes.url, FILE, "--yes")
    (machine.home.visible("notes") / "scripts/find.py").write_text("print('other')\n")
    (machine.home.visible("notes") / "new.md").write_text("x")

    verified = machine.agent("verify", "--json")
    assert verified.code == 1
    assert verified.json[0]["changed"] == ["scripts/find.py"]
    assert verified.json[0]["added"] == ["new.md"]
    assert machine.agent("info", "notes", "--json").json["state"] == "changed since it was trusted"

    assert machine.agent("trust", "notes").code == 2
    assert machine.agent("trust", "notes", "--yes").code == 0
    assert installed(machine)[0]["trusted"] is True
    assert machine.agent("untrust", "notes").code == 0
    assert installed(machine)[0]["state"] == "not trusted"


def test_manually_copied_skill_can_be_trusted_and_is_not_removed(
    machine: Machine, make_folder: Callable[..., Path]
) -> None:
    folder = make_folder("byhand")
    machine.home.root.mkdir(parents=True)
    folder.rename(machine.home.visible("byhand"))

    assert installed(machine)[0]["state"] == "not trusted"
    assert machine.agent("trust", "byhand", "--yes").code == 0
    assert installed(machine)[0]["state"] == "trusted"
    assert machine.agent("remove", "byhand", "--yes").code == 2
    assert machine.agent("untrust", "byhand").code == 0
    assert machine.registry.skills == {}


def test_local_folder_is_copied_and_updated_from_the_same_place(
    machine: Machine, make_folder: Callable[..., Path]
) -> None:
    folder = make_folder("notes", **{"scripts/__pycache__/x.pyc": "compiled", ".git/config": "x"})

    assert machine.agent("add", str(folder), "--yes").code == 0
    assert list(machine.registry.skills["notes"].files) == ["SKILL.md"]
    (folder / "new.md").write_text("x")
    assert machine.agent("update", "notes", "--yes", "--json").json["diff"]["files_added"] == ["new.md"]
    assert (machine.home.visible("notes") / "new.md").exists()


def test_full_disk_prevents_installation_and_a_nearly_full_one_causes_a_warning(
    machine: Machine, make_folder: Callable[..., Path]
) -> None:
    source = FolderSource(path=make_folder("notes"))

    def install(limits: InstallLimits) -> tuple[str, ...]:
        installer = Installer(home=machine.home, limits=limits)
        outcome = anyio.run(lambda: installer.add(source, confirm=lambda _: "trust"))
        return outcome.proposal.warnings

    with pytest.raises(SkillError, match="are needed"):
        install(InstallLimits(min_free_bytes=10**18))
    assert machine.registry.skills == {}
    assert "MB free" in install(InstallLimits(warn_free_bytes=10**18))[0]


def test_damaged_registry_is_an_error_and_nothing_is_lost(machine: Machine, notes: Repository) -> None:
    machine.agent("add", notes.url, FILE, "--yes")
    for text in ('{"version": 2, "skills": {"notes": {', '{"version": 2, "skills": {"notes": {"name": 1}}}', "[[1]]"):
        machine.home.registry_file.write_text(text)

        for command in (["remove", "notes", "--yes"], ["add", notes.url, FILE, "--yes", "--name", "x"]):
            result = machine.agent(*command)

            assert result.code == 1
            assert "registry.json" in result.err
        assert "registry.json" in machine.agent("list").err
        assert machine.home.registry_file.read_text() == text
        assert machine.home.visible("notes").exists()


def test_registry_of_a_newer_version_is_not_changed(machine: Machine) -> None:
    machine.home.root.mkdir(parents=True)
    machine.home.registry_file.write_text('{"version": 3, "skills": {}}')

    assert "version 3" in machine.agent("list").err


@pytest.mark.parametrize("shape", ["list", "by name", "skills"])
def test_registry_of_the_first_format_is_read_and_trusts_nothing(machine: Machine, shape: str) -> None:
    entry = {
        "name": "Old_Skill",
        "name_canonical": "old-skill",
        "git_url": "https://example.org/old.git",
        "commit_sha": "0" * 40,
        "branch": "main",
        "tag": None,
        "installed_path": str(machine.home.visible("old-skill")),
        "trusted": True,
        "installed_at": "2025-01-02T03:04:05Z",
    }
    machine.home.root.mkdir(parents=True)
    content = {"list": [entry], "by name": {"old-skill": entry}, "skills": {"skills": {"old-skill": entry}}}[shape]
    machine.home.registry_file.write_text(json.dumps(content))

    old = machine.registry.skills["old-skill"]

    assert (old.name, old.commit_sha, old.trusted, old.trusted_digest) == ("Old_Skill", "0" * 40, False, None)
    assert installed(machine)[0]["state"] == "the folder is gone"
