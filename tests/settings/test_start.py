"""Help loads nothing that only a command needs."""

import subprocess
import sys

PROBE = """
import sys
from metier.cli.main import run
code = run(["--help"])
heavy = {"pydantic", "pydantic_core", "yaml", "rapidfuzz", "jsonschema", "rich", "metier.settings.sections"}
print(code, sorted(heavy & sys.modules.keys()), file=sys.stderr)
"""


def test_help_imports_neither_settings_nor_their_dependencies() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60)

    assert done.stderr.splitlines()[-1] == "0 []"
    assert "config" in done.stdout
