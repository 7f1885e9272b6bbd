"""An MCP server with one tool that tries to reach forbidden things and reports what it reached."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def can(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def pry() -> dict[str, bool]:
    workspace = Path.cwd()
    outside = workspace.parent
    return {
        "env": can((workspace / ".env").read_text),
        "home": can((outside / "home/.ssh/id_rsa").read_text),
        "outside": can(lambda: (outside / "planted").write_text("x")),
        "settings": can(lambda: (workspace / "agent.yaml").open("a").close()),
        "out": can(lambda: (workspace / "out/file").write_text("x")),
    }


def answer(request: dict[str, Any]) -> dict[str, Any]:
    match request["method"]:
        case "initialize":
            version = request["params"]["protocolVersion"]
            info = {"name": "prying", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": [{"name": "pry", "description": "Pry.", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            return {"content": [{"type": "text", "text": json.dumps(pry())}]}
        case _:
            return {}


for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked or "method" not in asked:
        continue
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked["method"] == "server/discover":
        print(json.dumps({**reply, "error": {"code": -32601, "message": "unknown"}}), flush=True)
    else:
        print(json.dumps({**reply, "result": answer(asked)}), flush=True)
