"""Paths cannot leave the roots, in any spelling and despite concurrent changes."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from example_counts import examples
from metier.definitions.files.contained_path import Opener, choose_opener, open_by_kernel, open_by_walking
from metier.errors import ToolFailed
from metier.tools.files.scope import Scope, canonical_path
from metier.tools.protected import protected

SECRET = b"the content that lies outside"
OPENERS = [open_by_walking, *([open_by_kernel] if choose_opener() is open_by_kernel else [])]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A workspace with valid files, a secret next to it, and links of every kind."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_bytes(SECRET)
    (tmp_path / "workspace-evil").mkdir()
    (tmp_path / "workspace-evil" / "secret.txt").write_bytes(SECRET)
    root = tmp_path / "workspace"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "notes.txt").write_bytes(b"inside")
    (root / "src" / "main.py").write_bytes(b"inside")
    (root / "src" / "deep" / "x.txt").write_bytes(b"inside")
    links = {
        "file_out": "../outside/secret.txt",
        "file_out_absolute": str(tmp_path / "outside" / "secret.txt"),
        "folder_out": "../outside",
        "folder_out_absolute": str(tmp_path / "outside"),
        "src/deep/up": "../../../outside",
        "chain": "chain2",
        "chain2": "folder_out",
        "loop": "loop2",
        "loop2": "loop",
        "self": "self",
        "root": "/",
        "proc_root": "/proc/self/root",
        "proc_cwd": "/proc/self/cwd",
        "parent": "..",
        "around": "../workspace/../outside/secret.txt",
        "through": "src/../../outside",
        "inside_link": "src/main.py",
        "inside_folder": "src",
        "src/deep/back": "../../notes.txt",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    return root


@pytest.fixture(params=OPENERS, ids=lambda opener: opener.__name__)
def scope(tree: Path, request: pytest.FixtureRequest) -> Scope:
    opener: Opener = request.param
    return Scope([tree], opener=opener)


def read(scope: Scope, text: str) -> bytes:
    with scope.open_file(text) as opened:
        return os.read(opened.descriptor, 1000)


def create(scope: Scope, text: str) -> None:
    with scope.open_target(text, create_folders=True) as target:
        os.close(os.open(target.name, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, dir_fd=target.folder))


def list_outside(tree: Path) -> list[tuple[str, bytes]]:
    return [
        (str(path), path.read_bytes() if path.is_file() else b"")
        for path in sorted(tree.parent.rglob("*"))
        if tree not in path.parents
    ]


ESCAPES = [
    "..", "../", "../outside/secret.txt", "../../etc/passwd", "./../outside/secret.txt",
    "src/../../outside/secret.txt", "src/deep/../../../outside/secret.txt", "src//..//..//outside//secret.txt",
    "a/b/../../../outside/secret.txt", "./././../outside/secret.txt", "src/./../../outside/secret.txt",
    "src/deep/../../../../etc/passwd", "notes.txt/../../outside/secret.txt", "missing/../../outside/secret.txt",
    ".../../../outside/secret.txt", "/etc/passwd", "//etc/passwd", "///etc/passwd", "/", "//", "/.", "/..",
    "/etc/../etc/passwd", "/./etc/passwd", "/proc/self/environ", "/proc/self/root/etc/passwd", "/proc/self/cwd/x",
    "/proc/self/fd/0", "/dev/null", "/dev/zero", "/dev/stdin", "/dev/fd/0", "/sys/kernel/hostname",
    "{root}/../outside/secret.txt", "{root}-evil/secret.txt", "{root}/../workspace-evil/secret.txt",
    "{root}/src/../../outside/secret.txt", "{root}/..", "{root}/../", "/{root}/../outside/secret.txt",
    "{root}/./../outside/secret.txt", "file_out", "file_out_absolute", "folder_out/secret.txt",
    "folder_out_absolute/secret.txt", "folder_out/../outside/secret.txt",
    "folder_out/../../workspace-evil/secret.txt", "src/deep/up/secret.txt", "src/deep/up/../outside/secret.txt",
    "chain/secret.txt", "chain2/secret.txt", "loop", "loop2/x", "self", "self/self", "root/etc/passwd",
    "proc_root/etc/passwd", "proc_cwd/notes.txt", "parent/outside/secret.txt", "parent", "parent/workspace/notes.txt",
    "around", "through/secret.txt", "{root}/folder_out/secret.txt", "..\\outside\\secret.txt",
    "src\\..\\..\\outside\\secret.txt", "..\\/outside/secret.txt", "C:/Windows/win.ini", "c:\\Windows\\win.ini",
    "\\\\server\\share\\x", "~", "~/secret.txt", "~root/.ssh/id_rsa", "file:///etc/passwd", "http://127.0.0.1/x",
    "notes.txt\0", "notes.txt\0.png", "\0", "../outside/secret.txt\0", "", " ", "\t", "notes.txt\n", "a\x7fb",
    "no\u202etxt.exe", "x\ud800", "a/" * 3000, "%2e%2e/outside/secret.txt", "..%2foutside%2fsecret.txt",
    "..%c0%afoutside", "\uff0e\uff0e/outside/secret.txt", "．．/outside/secret.txt", "..;/outside/secret.txt",
    "....//outside/secret.txt", "..../outside/secret.txt", "NOTES.TXT/../../outside/secret.txt",
    "src/..\u200b/x",
]  # fmt: skip


def test_the_corpus_has_more_than_sixty_escapes() -> None:
    assert len(set(ESCAPES)) >= 60


@pytest.mark.parametrize("text", ESCAPES, ids=lambda text: ascii(text)[:60])
def test_escape_is_rejected_with_one_message_and_nothing_outside_is_changed(
    scope: Scope, tree: Path, text: str
) -> None:
    written = text.replace("{root}", str(tree))
    before = list_outside(tree)

    with pytest.raises(ToolFailed) as reading:
        read(scope, written)
    for target in (written, f"{written}/new.txt"):
        with suppress(ToolFailed):
            create(scope, target)

    assert list_outside(tree) == before
    assert SECRET.decode() not in reading.value.message
    assert "\n" not in reading.value.message


NEIGHBOURS = {
    "notes.txt": "notes.txt",
    "./notes.txt": "notes.txt",
    "src/../notes.txt": "notes.txt",
    "src/main.py": "src/main.py",
    "src//main.py": "src/main.py",
    "src/deep/../main.py": "src/main.py",
    "{root}/notes.txt": "notes.txt",
    "{root}/src/../notes.txt": "notes.txt",
    "{root}/../workspace/notes.txt": "notes.txt",
    "inside_link": "src/main.py",
    "inside_folder/main.py": "src/main.py",
    "inside_folder/deep/x.txt": "src/deep/x.txt",
    "src/deep/back": "notes.txt",
}


@pytest.mark.parametrize("text", NEIGHBOURS)
def test_inside_files_are_read_and_named_by_their_real_path(scope: Scope, tree: Path, text: str) -> None:
    written = text.replace("{root}", str(tree))

    assert read(scope, written) == b"inside"
    assert scope.canonical(written) == NEIGHBOURS[text]


def test_unusual_but_valid_names_are_accepted(scope: Scope, tree: Path) -> None:
    for name in (
        "...",
        "..a",
        "a..",
        "with blank.txt",
        "naïve.txt",
        "日本.txt",
        "a:b",
        "%2e%2e",
        "-rf",
        "$HOME",
        "a'b\"c",
    ):
        (tree / name).write_bytes(b"inside")

        assert read(scope, name) == b"inside"


@pytest.mark.parametrize("opener", OPENERS)
def test_links_inside_are_rejected_if_links_are_disabled(tree: Path, opener: Opener) -> None:
    scope = Scope([tree], links=False, opener=opener)

    assert read(scope, "src/main.py") == b"inside"
    for text in ("inside_link", "inside_folder/main.py", "src/deep/back"):
        with pytest.raises(ToolFailed, match="symbolic link"):
            read(scope, text)


def test_pipes_sockets_and_devices_are_rejected_without_blocking(scope: Scope, tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tree / "s"))
        for name in ("pipe", "s"):
            with pytest.raises(ToolFailed, match="neither a file nor a folder"):
                read(scope, name)
            with pytest.raises(ToolFailed, match="is not a file"), scope.open_target(name, create_folders=False):
                pass


def test_a_second_root_is_reached_by_its_absolute_path_only(tree: Path) -> None:
    outside = tree.parent / "outside"
    scope = Scope([tree, outside])

    assert read(scope, str(outside / "secret.txt")) == SECRET
    assert scope.canonical(str(outside / "new.txt")) == str(outside.resolve() / "new.txt")
    with pytest.raises(ToolFailed):
        read(scope, "../outside/secret.txt")


def test_canonical_path_is_computed_without_disk_access() -> None:
    root = Path("/no/such/root")

    assert canonical_path(root, "a/./b/../c") == "a/c"
    assert canonical_path(root, "/no/such/root/x") == "x"
    assert canonical_path(root, ".") == ""
    for text in ("..", "a/../..", "/no/such/rooted/x", "/no/such"):
        with pytest.raises(ToolFailed):
            canonical_path(root, text)


PARTS = st.sampled_from(
    ["..", ".", "", "src", "deep", "up", "folder_out", "file_out", "parent", "through", "chain", "secret.txt",
     "outside", "workspace", "root", "proc_cwd", "inside_folder", "main.py", "loop", "around", "etc", "passwd"]
)  # fmt: skip


PATHS = st.tuples(st.sampled_from(["", "/", "{root}/"]), st.lists(PARTS, min_size=1, max_size=8))


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=PATHS)
def test_random_paths_do_not_reach_outside_files(scope: Scope, tree: Path, path: tuple[str, list[str]]) -> None:
    text = path[0].replace("{root}", str(tree)) + "/".join(path[1])
    with suppress(ToolFailed):
        assert read(scope, text) == b"inside"
    with suppress(ToolFailed), scope.open_target(f"{text}/new", create_folders=False) as target:
        where = Path(f"/proc/self/fd/{target.folder}")
        assert not where.exists() or where.resolve().is_relative_to(tree.resolve())


@pytest.fixture
def flipping(tree: Path) -> Iterator[Path]:
    """A folder that alternates with a link to the outside."""
    good, bad, name = tree / "good", tree / "bad", tree / "flip"
    good.mkdir()
    (good / "secret.txt").write_bytes(b"inside")
    bad.symlink_to("../outside")
    stop = threading.Event()

    def flip() -> None:
        while not stop.is_set():
            good.rename(name)
            name.rename(good)
            bad.rename(name)
            name.rename(bad)

    thread = threading.Thread(target=flip)
    thread.start()
    yield name
    stop.set()
    thread.join()


def test_a_folder_replaced_by_a_link_during_access_is_not_followed(scope: Scope, tree: Path, flipping: Path) -> None:
    read_well = refused = 0
    for _ in range(3000):
        try:
            assert read(scope, "flip/secret.txt") == b"inside"
            read_well += 1
        except ToolFailed:
            refused += 1
        try:
            with scope.open_target("flip/new.txt", create_folders=False) as target:
                os.close(os.open("new.txt", os.O_CREAT | os.O_WRONLY, dir_fd=target.folder))
        except ToolFailed:
            refused += 1

    assert not (tree.parent / "outside" / "new.txt").exists()
    assert refused > 0
    assert read_well > 0


PROTECTED = [
    ".git/config", ".git/hooks/pre-commit", ".git", "sub/.git/config", ".GIT/config", ".Git/hooks/x", ".git./config",
    ".git /config", ".g\u200bit/config", "git~1/config", ".git::$INDEX_ALLOCATION/config", ".ｇｉｔ/config", ".hg/hgrc",
    ".agent/tool-access.json", ".agent/skills/x/SKILL.md", ".AGENT/x", ".nanobot/tasks/t/TASK.md", ".agents/skills/a",
    ".claude/settings.json", "agent.yaml", "AGENT.YAML", "agent.yml", "context/system_prompt.md", "context/soul.json",
    "runs/state.db", "runs/r1/events.jsonl", "Runs/x", "runs", ".env", ".env.local", ".ENV", "app/.env.production",
    "prod.env", "server.pem", "tls/server.KEY", "id_rsa", "id_rsa.pub", "id_ed25519", ".netrc", "_netrc", ".npmrc",
    ".pypirc", ".pgpass", ".git-credentials", ".ssh/config", ".aws/credentials", ".kube/config", "keys.p12", ".envrc",
    ".husky/pre-push",
]  # fmt: skip
OPEN = [
    "README.md", "src/git.py", ".github/workflows/x.yml", ".gitignore", ".env.example", "environment.py",
    "docs/agent.md", "sub/agent.yaml", "agents/a.md", "context/notes.md", "src/runs/x", "runs.py", "run/x",
    "keyboard.py", "pem.txt", "a.keys", "rsa.py", "tests/test_env.py",
]  # fmt: skip


@pytest.mark.parametrize("path", PROTECTED, ids=ascii)
def test_protected_file_is_not_written_even_if_missing(tree: Path, path: str) -> None:
    before = sorted(tree.rglob("*"))

    with (
        pytest.raises(ToolFailed, match="is protected: it holds"),
        Scope([tree], own_folders=("runs",)).open_target(path, create_folders=True),
    ):
        pass

    assert sorted(tree.rglob("*")) == before
    with Scope([tree], protect=False).open_target(path, create_folders=True) as target:
        assert target.status is None


@pytest.mark.parametrize("path", OPEN)
def test_neighbors_of_protected_files_are_writable(path: str) -> None:
    assert protected(path, own_folders=("runs",)) is None


def test_a_link_to_a_protected_folder_grants_no_access(scope: Scope, tree: Path) -> None:
    (tree / ".git").mkdir()
    (tree / "harmless").symlink_to(".git")

    with pytest.raises(ToolFailed, match="Git's own files"), scope.open_target("harmless/hook", create_folders=True):
        pass


@pytest.mark.parametrize("way", [open_by_kernel, open_by_walking])
def test_root_replaced_by_a_link_is_rejected(tmp_path: Path, way: Opener) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    root.mkdir()
    other.mkdir()
    (root / "a.txt").write_text("mine")
    (other / "a.txt").write_text("not mine")
    scope = Scope((root,), opener=way)
    root.rename(tmp_path / "moved")
    root.symlink_to(other)

    with pytest.raises(ToolFailed, match="was replaced since"), scope.open_file("a.txt"):
        pass
    with pytest.raises(ToolFailed, match="was replaced since"), scope.open_target("b.txt", create_folders=True):
        pass

    assert not (other / "b.txt").exists()
