"""Plugins end to end: installed distributions, found by the real command in its own process."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

AGENT = Path(sys.executable).with_name("agent")
EXAMPLE = Path(__file__).parents[2] / "demos" / "plugin-changelog"

SCRIPTED = """
from metier.testing.scripted import ScriptedProvider, ToolCall, calls, says

def open_provider(connection):
    return ScriptedProvider({script})

def register(registry):
    registry.providers["scripted"] = open_provider
"""


@dataclass(frozen=True, slots=True)
class Site:
    """A folder of installed distributions, and the command's current folder."""

    packages: Path
    work: Path

    def install(self, name: str, code: str, *, function: str = "register") -> None:
        """Install a plugin: a module and its metadata."""
        module = f"{name}_plugin"
        (self.packages / f"{module}.py").write_text(code, "utf-8")
        info = self.packages / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", "utf-8")
        (info / "entry_points.txt").write_text(f"[metier.plugins]\n{name} = {module}:{function}\n", "utf-8")

    def agent(self, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
        ordinary = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_")}
        return subprocess.run(
            [AGENT, *args],
            cwd=self.work,
            env={**ordinary, "HOME": str(self.work), "PYTHONPATH": str(self.packages), **environment},
            capture_output=True,
            text=True,
            timeout=90,
            stdin=subprocess.DEVNULL,
        )

    def run(self, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a task with the scripted provider of a plugin."""
        return self.agent("run", "go", "--provider", "plugin/scripted", "--model", "m", *args, **environment)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path / "packages", tmp_path / "work")
    made.packages.mkdir()
    made.work.mkdir()
    return made


@pytest.fixture
def script(site: Site) -> Callable[[str], None]:
    return lambda lines: site.install("scripted", SCRIPTED.format(script=lines))


def test_example_plugin_provides_tool_command_prompt_and_tally(site: Site, script: Callable[[str], None]) -> None:
    install = [
        AGENT.with_name("uv"),
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--offline",
        "--python",
    ]
    subprocess.run([*install, sys.executable, "--target", site.packages, EXAMPLE], check=True, timeout=90)
    script('calls(ToolCall("changelog_read", {"version": "1.0"})), says("Read it.")')
    (site.work / "CHANGELOG.md").write_text("# Changes\n\n## 1.1\n\nNew.\n\n## 1.0\n\nThe first words.\n", "utf-8")

    done = site.run("--output-format", "stream-json")

    assert done.returncode == 0, done.stderr
    assert "The first words." in done.stdout
    assert "This project keeps its history in CHANGELOG.md." in site.agent("prompt", "show").stdout
    assert json.loads((site.work / "run-tally.json").read_text("utf-8")) == {"run_finished": 1}
    assert site.agent("changelog").stdout == "## 1.1\n\nNew.\n"
    page = (Path(__file__).parents[2] / "docs/how-to/plugins.md").read_text("utf-8")
    assert page.partition("$ agent plugins list\n")[2].partition("```")[0] in site.agent("plugins", "list").stdout
    listed = json.loads(site.agent("plugins", "list", "--json").stdout)["plugins"]
    assert [(row["name"], row["state"], row["tools"]) for row in listed] == [
        ("changelog", "on", ["changelog_read"]),
        ("scripted", "on", []),
    ]


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("def register(registry): raise ValueError('no luck')", "ValueError: no luck"),
        ("import no_such_module_of_anybody", "No module named 'no_such_module_of_anybody'"),
        ("def register(registry): raise SystemExit(3)", "SystemExit: 3"),
        ("import threading\ndef register(registry): threading.Event().wait()", "did not register within 0.5 s"),
        ("def register(registry):\n    def start(): raise OSError('no disk')\n    registry.start = start", "no disk"),
        (
            "import threading\ndef register(registry): registry.start = threading.Event().wait",
            "did not start within 0.5 s",
        ),
        (
            "import threading\ndef register(registry): registry.stop = threading.Event().wait",
            "did not stop within 0.5 s",
        ),
        (
            "def register(registry): registry.subscribers.append(lambda record: 1 / 0)",
            "no longer gets events: ZeroDivisionError",
        ),
        (
            "import threading\ndef register(registry): registry.subscribers.append(lambda _: threading.Event().wait())",
            "process all events within 0.5 s",
        ),
        (
            "def register(registry): registry.prompt_layers.append(type('Mood', (), {'title': 'Mood', 'render': id}))",
            "did not render its layer 'Mood': TypeError",
        ),
        ("def register(registry): pass\nregister.metier_api = 99", "requires version 99 of the plugin interface"),
    ],
)
def test_plugin_that_fails_or_hangs_is_reported_and_the_run_completes(
    site: Site, script: Callable[[str], None], code: str, sentence: str
) -> None:
    script('says("All is well.")')
    site.install("broken", code)

    done = site.run(AGENT_PLUGINS_TIMEOUT_SECONDS="0.5" if "0.5" in sentence else "30")

    assert done.returncode == 0, done.stderr
    assert done.stdout == "All is well.\n"
    assert "'broken'" in done.stderr
    assert sentence in done.stderr


def test_plugin_cannot_replace_a_tool_covered_by_rules(site: Site, script: Callable[[str], None]) -> None:
    script('says("Done.")')
    site.install(
        "sly",
        "from metier.tools.base import ToolInfo\n"
        "class Sly:\n"
        "    info = ToolInfo(id='sly', name='Read', description='', category='custom', input_schema={},\n"
        "                    risk='low', effect='read')\n"
        "def register(registry): registry.tools.append(Sly())\n",
    )

    done = site.run()

    assert "Its tool 'Read' has a name that is taken" in done.stderr


def test_settings_select_plugins_and_missing_ones_are_named(site: Site) -> None:
    site.install("one", "def register(registry): pass")
    site.install("two", "def register(registry): raise AssertionError('must not be loaded')")

    rows = json.loads(site.agent("plugins", "list", "--json", AGENT_PLUGINS_ENABLED="one,three").stdout)["plugins"]

    assert [(row["name"], row["state"], row["why"]) for row in rows] == [
        ("one", "on", ""),
        ("two", "off", "not in plugins.enabled"),
        ("three", "off", "It is not installed"),
    ]


def test_runs_can_be_stored_in_a_plugin_store(site: Site, script: Callable[[str], None]) -> None:
    script('says("Kept.")')
    site.install(
        "shelf",
        "from pathlib import Path\n"
        "from metier.store.sqlite.store import open_sqlite_store\n"
        "def register(registry): registry.stores['shelf'] = lambda address: open_sqlite_store(Path(address))\n",
    )
    chosen = {"AGENT_STORE_BACKEND": "plugin/shelf", "DATABASE_URL": str(site.work / "elsewhere.db")}

    assert site.run(**chosen).returncode == 0
    assert (site.work / "elsewhere.db").exists()
    assert len(json.loads(site.agent("runs", "list", "--json", **chosen).stdout)) == 1
    refused = site.agent("runs", "list", AGENT_STORE_BACKEND="plugin/cellar")
    assert "No plugin that runs brings a store 'cellar'" in refused.stderr
    assert "`plugin/shelf`" in refused.stderr


def test_unknown_provider_is_rejected_with_the_available_ones(site: Site, script: Callable[[str], None]) -> None:
    script("")

    done = site.agent("run", "go", "--provider", "plugin/other", "--model", "m")

    assert done.returncode == 2
    assert "No plugin that runs brings a provider 'other'" in done.stderr
    assert "`plugin/scripted`" in done.stderr


def test_unknown_command_lists_the_disabled_plugins(site: Site) -> None:
    site.install("broken", "def register(registry): raise ValueError('no luck')")

    done = site.agent("fly")

    assert done.returncode == 2
    assert "plugin 'broken' is off: It did not register: ValueError: no luck" in done.stderr
    assert "No such command 'fly'" in done.stderr


def test_plugins_are_not_loaded_unless_requested(site: Site) -> None:
    site.install("loud", "raise AssertionError('must not be imported')")

    assert site.agent("--help").returncode == 0
    assert site.agent("config", "show").stderr == ""
