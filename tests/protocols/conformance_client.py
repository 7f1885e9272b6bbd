"""`agent skill add` as the conformance suite's client; the last argument is the server's address."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

AGENT = Path(sys.executable).parent / "agent"

with tempfile.TemporaryDirectory() as folder:
    home, work = Path(folder, "home"), Path(folder, "work")
    home.mkdir()
    (work / ".agent").mkdir(parents=True)
    servers = {"suite": {"url": sys.argv[-1]}}
    (work / ".agent" / "mcp.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    environment = {**os.environ, "HOME": str(home)}
    # A skill that is not there: the list is read, and no file of another one.
    wanted = "missing" if "no-prefetch" in os.environ["MCP_CONFORMANCE_SCENARIO"] else "pdf-processing"
    for command in (["mcp", "accept", "suite", "--yes"], ["skill", "add", f"mcp:suite/{wanted}", "--yes"]):
        subprocess.run([AGENT, *command], cwd=work, env=environment, timeout=60)
    sys.exit(int((home / ".agent" / "skills" / "pdf-processing").exists()))
