"""An MCP server with one tool whose result has a picture and an invalid one."""

import base64
import json
import sys
from typing import Any

from pictures import build_png

TOOL: dict[str, Any] = {"name": "draw", "description": "Draws.", "inputSchema": {"type": "object", "properties": {}}}


def answer(request: dict[str, Any]) -> dict[str, Any] | None:
    match request["method"]:
        case "initialize":
            version = request["params"]["protocolVersion"]
            info = {"name": "pictures", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            data = base64.b64encode(build_png(9, 7)).decode()
            torn = base64.b64encode(b"no picture").decode()
            pictures = [{"type": "image", "mimeType": "image/jpeg", "data": each} for each in (data, torn)]
            return {"content": [{"type": "text", "text": "Drawn."}, *pictures]}
        case _:
            return None


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        result = answer(asked)
        error = {"error": {"code": -32601, "message": "no such method"}}
        body = {"jsonrpc": "2.0", "id": asked["id"], **({"result": result} if result is not None else error)}
        sys.stdout.write(json.dumps(body) + "\n")
        sys.stdout.flush()
