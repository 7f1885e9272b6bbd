"""Rules and links: a call is evaluated by its own path and by the link's target."""

import threading
from pathlib import Path

import pytest
from pydantic import JsonValue
from workspaces import Drill, call, put

from metier.engine.entries.step import StepStarted
from metier.errors import ToolFailed
from metier.testing.scripted import says
from metier.tools.base import ToolContext
from metier.tools.files.read import Read
from metier.tools.files.scope import Scope

pytestmark = pytest.mark.anyio

SECRET = "the-hidden-word"
DENY = """
rules:
  - {tool: "*", allow: false, reason: Hands off, when: {path: {startsWith: secrets/}}}
  - {tool: Write, allow: true}
  - {tool: Edit, allow: true}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    workspace = tmp_path / "workspace"
    put(
        workspace,
        {
            "secrets/key.txt": f"{SECRET}\n",
            "notes/a.txt": f"about {SECRET[:3]}\n",
            ".agent/policy.yaml": DENY,
        },
    )
    (workspace / "link").symlink_to("secrets")
    (workspace / "notes" / "deep").symlink_to("../secrets")
    (workspace / "key").symlink_to("secrets/key.txt")
    (workspace / "chain").symlink_to("link")
    return workspace


def spell(folder: Path) -> dict[str, str]:
    """Return spellings of `secrets/key.txt`."""
    return {
        "plain": "secrets/key.txt",
        "dots": "./secrets/./key.txt",
        "slashes": "secrets//key.txt",
        "up and down": "notes/../secrets/key.txt",
        "absolute": f"{folder}/secrets/key.txt",
        "absolute with slashes": f"{folder}//secrets///key.txt",
        "link": "link/key.txt",
        "link with dots": ".//link/.//key.txt",
        "deeper link": "notes/deep/key.txt",
        "link to a link": "chain/key.txt",
        "absolute link": f"{folder}/link/key.txt",
    }


SPELLINGS = tuple(spell(Path("/")))


@pytest.mark.parametrize("spelling", [*SPELLINGS, "link to the file"])
async def test_no_spelling_of_a_denied_file_is_read(folder: Path, spelling: str) -> None:
    path = {**spell(folder), "link to the file": "key"}[spelling]
    drill = Drill(folder, [call("Read", path=path), says("Done.")])

    await drill.run()

    (told,) = drill.told
    assert "Hands off" in told
    assert SECRET not in told


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("tool", ["Write", "Edit"])
async def test_no_spelling_of_a_denied_file_is_changed(folder: Path, spelling: str, tool: str) -> None:
    path = spell(folder)[spelling]
    change: dict[str, JsonValue] = {"content": "x"} if tool == "Write" else {"old": SECRET, "new": "x"}
    drill = Drill(folder, [call(tool, path=path, **change), says("Done.")])

    await drill.run()

    assert "Hands off" in drill.told[0]
    assert (folder / "secrets/key.txt").read_text() == f"{SECRET}\n"


async def test_no_new_file_is_created_behind_a_link(folder: Path) -> None:
    drill = Drill(folder, [call("Write", path="link/new/file.txt", content="x"), says("Done.")])

    await drill.run()

    assert drill.told == ["It leads to 'secrets/new/file.txt'. Rule 1 of the host denies this call: Hands off"]
    assert sorted(path.name for path in (folder / "secrets").iterdir()) == ["key.txt"]


@pytest.mark.parametrize("path", ["secrets", "link", "notes/deep", "chain", "./link/", "//secrets"])
@pytest.mark.parametrize("tool", ["Glob", "Grep"])
async def test_no_spelling_of_a_denied_folder_is_searched(folder: Path, path: str, tool: str) -> None:
    written = f"{folder}/{path}" if path.startswith("//") else path
    pattern = "**/*.txt" if tool == "Glob" else "hidden"
    drill = Drill(folder, [call(tool, pattern=pattern, path=written), says("Done.")])

    await drill.run()

    (told,) = drill.told
    assert "key.txt" not in told
    assert SECRET not in told
    assert "Hands off" in told


@pytest.mark.parametrize("arguments", [{}, {"path": "."}, {"path": "notes/.."}, {"glob": "secrets/*"}])
async def test_a_search_in_a_parent_folder_omits_denied_files(folder: Path, arguments: dict[str, JsonValue]) -> None:
    drill = Drill(folder, [call("Grep", pattern="the", **arguments), says("Done.")])

    await drill.run()

    assert SECRET not in drill.told[0]
    assert "secrets/" not in drill.told[0]
    assert drill.told[0] == "No line matches" or "notes/a.txt" in drill.told[0]


@pytest.mark.parametrize("pattern", ["**/*.txt", "secrets/*", "*/key.txt"])
async def test_a_listing_of_a_parent_folder_omits_denied_files(folder: Path, pattern: str) -> None:
    drill = Drill(folder, [call("Glob", pattern=pattern), says("Done.")])

    await drill.run()

    assert "secrets/" not in drill.told[0]


@pytest.mark.parametrize("path", ["Secrets/key.txt", "SECRETS/KEY.TXT", "ſecrets/key.txt", "secrets/KEY.txt"])
@pytest.mark.parametrize(
    "when",
    [
        "{startsWith: secrets/}",
        "{startsWith: secrets}",
        "{equals: secrets/key.txt}",
        "{in: [secrets/key.txt]}",
        "{matches: 'secrets/.*'}",
        "{contains: secrets/}",
    ],
)
async def test_a_denied_path_is_also_denied_in_upper_case(folder: Path, path: str, when: str) -> None:
    (folder / ".agent/policy.yaml").write_text(f"rules: [{{tool: Read, allow: false, when: {{path: {when}}}}}]")
    drill = Drill(folder, [call("Read", path=path), says("Done.")])

    await drill.run()

    assert drill.told == ["Not run: Rule 1 of the host denies this call"]


async def test_an_allow_rule_is_case_sensitive(folder: Path) -> None:
    (folder / ".agent/policy.yaml").write_text(
        "rules: [{tool: Write, allow: true, when: {path: {startsWith: notes/}}}]"
    )
    drill = Drill(folder, [call("Write", path="NOTES/b.txt", content="x"), says("Done.")])

    state = await drill.run()

    assert state.pause is not None
    assert not (folder / "NOTES").exists()


async def test_a_link_outside_the_allowed_paths_is_asked_about_by_its_target(folder: Path) -> None:
    rules = "rules: [{tool: Write, allow: true, when: {path: {startsWith: notes/}}}]"
    (folder / ".agent/policy.yaml").write_text(rules)
    put(folder, {"src/main.py": "old\n"})
    (folder / "notes/code").symlink_to("../src")
    drill = Drill(folder, [call("Write", path="notes/code/main.py", content="new\n"), says("Done.")])

    state = await drill.run()

    (question,) = await drill.questions()
    assert question.asked is not None
    assert "It leads to 'src/main.py'" in question.asked.reason
    assert question.asked.preview.startswith("The path leads to 'src/main.py'\n--- src/main.py\n")
    assert (folder / "src/main.py").read_text() == "old\n"

    await drill.decide("approved")
    done = await drill.resume(state.run_id)

    assert done.status == "completed"
    assert (folder / "src/main.py").read_text() == "new\n"


async def test_a_link_retargeted_after_the_approval_is_asked_about_again(folder: Path) -> None:
    put(folder, {"src/a": "", "hooks/b": ""})
    (folder / "to").symlink_to("src")
    (folder / ".agent/policy.yaml").unlink()
    drill = Drill(folder, [call("Write", path="to/new.sh", content="x"), says("Done.")])
    state = await drill.run()
    await drill.decide("approved")
    (folder / "to").unlink()
    (folder / "to").symlink_to("hooks")

    parked = await drill.resume(state.run_id)

    assert parked.pause is not None
    (question,) = await drill.questions()
    assert question.asked is not None
    assert question.asked.leads_to == ("hooks/new.sh",)
    assert "It leads elsewhere now: 'hooks/new.sh'" in question.asked.reason
    assert not list(folder.glob("*/new.sh"))


async def test_a_link_created_earlier_in_the_same_turn_is_resolved(folder: Path) -> None:
    """The path was checked before the link existed; the open file is checked again."""
    rules = (
        "rules: [{tool: Bash, allow: true, when: {command: {equals: ln -s secrets late}}},"
        + DENY.split("rules:")[1].replace("\n  - ", ", ").strip(", \n")
        + "]"
    )
    (folder / ".agent/policy.yaml").write_text(rules)
    script = [call("Bash", command="ln -s secrets late"), call("Read", path="late/key.txt"), says("Done.")]
    drill = Drill(folder, script)

    await drill.run()

    assert (folder / "late").is_symlink()
    assert "Hands off" in drill.told[1]


async def test_rules_apply_under_both_names_of_a_linked_workspace(folder: Path) -> None:
    other = folder.parent / "other"
    other.symlink_to(folder)
    drill = Drill(
        other, [call("Read", path=f"{folder}/secrets/key.txt"), call("Read", path="notes/a.txt"), says("Done.")]
    )

    await drill.run()

    assert "Hands off" in drill.told[0]
    assert "about the" in drill.told[1]


async def test_a_link_within_the_allowed_paths_needs_no_approval(folder: Path) -> None:
    (folder / "notes/again.txt").symlink_to("a.txt")
    drill = Drill(folder, [call("Read", path="notes/again.txt"), says("Done.")])

    state = await drill.run()

    assert state.status == "completed"
    assert "about the" in drill.told[0]


@pytest.mark.parametrize(
    "command",
    [
        "cat home/key",
        "cat ./home/key",
        "cat sub/../home/key",
        "cat -- home/key",
        "cd home && cat key",
        "grep -r x home/",
        "diff sub docs",
        "diff -- docs sub",
    ],
)
async def test_a_listed_command_does_not_follow_a_link_out_of_the_workspace(folder: Path, command: str) -> None:
    put(folder.parent, {"outside/key": SECRET})
    put(folder, {"sub/x": ""})
    put(folder, {"docs/readme": ""})
    (folder / "home").symlink_to("../outside")
    (folder / "docs/a").symlink_to("../sub/x")  # an innocent one that comes first
    (folder / "docs/key").symlink_to("../../outside/key")
    listed = ", ".join(f"{{startsWith: {program}}}" for program in ("cat", "grep", "cd", "diff"))
    rules = f"rules: [{{tool: Bash, allow: true, when: {{command: {{anyOf: [{listed}]}}}}}}]"
    (folder / ".agent/policy.yaml").write_text(rules)
    drill = Drill(folder, [call("Bash", command=command), says("Done.")])

    state = await drill.run()

    if state.pause is None:  # the folder that the line goes to is closed: nothing to ask
        assert "leaves the workspace" in drill.told[-1]
        assert SECRET not in "".join(drill.told)
        return
    (question,) = await drill.questions()
    assert question.asked is not None
    assert str(folder.parent / "outside") in question.asked.preview
    assert not [entry for entry in await drill.journal(state.run_id) if isinstance(entry, StepStarted)]


async def test_a_file_replaced_by_a_link_during_reading_is_not_shown(folder: Path) -> None:
    """Races are harmless because the open file is checked."""
    put(folder, {"swap/a.txt": "harmless\n"})
    put(folder, {"secrets/a.txt": SECRET})
    scope = Scope((folder,))
    stop = threading.Event()

    def swap() -> None:
        spare = folder / "spare"
        spare.symlink_to("secrets")
        while not stop.is_set():
            (folder / "swap").rename(folder / "real")
            spare.rename(folder / "swap")
            (folder / "swap").rename(spare)
            (folder / "real").rename(folder / "swap")

    class Guard:
        def check(self, path: str, *, key: str = "path") -> None:
            if path.startswith("secrets"):
                raise ToolFailed(f"The {key} is denied", code="permission_denied")

        def hides(self, path: str, *, key: str = "path") -> bool:
            return path.startswith("secrets")

    swapper = threading.Thread(target=swap)
    swapper.start()
    shown: set[str] = set()
    try:
        for _ in range(2_000):
            try:
                result = await Read(scope).execute({"path": "swap/a.txt"}, ToolContext(workspace=folder, paths=Guard()))
                shown.add(str(result.output))
            except ToolFailed as error:
                shown.add(error.code)
    finally:
        stop.set()
        swapper.join()

    assert not any(SECRET in text for text in shown)
    assert {"permission_denied"} < shown
