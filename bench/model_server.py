"""A model in a process of its own that answers at once: calls `echo` as often as its path says, then says `done`."""

import contextlib
import subprocess
import sys
from collections.abc import Generator

_SERVER = r"""
import asyncio, json
def answer(path, body):
    n = body.count(b'"role":"assistant"') + body.count(b'"role": "assistant"')
    done = n >= int(path.split("/")[1])
    text = {"text": f"turn {n}"}
    if path.endswith("/chat/completions"):
        call = {"id": f"t{n}", "type": "function", "function": {"name": "echo", "arguments": json.dumps(text)}}
        message = {"role": "assistant", "content": "done" if done else None} | ({} if done else {"tool_calls": [call]})
        return {"id": f"m{n}", "object": "chat.completion", "created": 1, "model": "m",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop" if done else "tool_calls"}],
                "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}}
    if path.endswith("/responses"):
        said = {"type": "output_text", "text": "done", "annotations": []}
        output = [{"type": "message", "id": "o", "status": "completed", "role": "assistant", "content": [said]}]
        return {"id": "r", "object": "response", "status": "completed", "model": "m", "output": output,
                "usage": {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}}
    if ":generateContent" in path:
        return {"candidates": [{"content": {"role": "model", "parts": [{"text": "done"}]}, "finishReason": "STOP"}],
                "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110}}
    call = {"type": "tool_use", "id": f"t{n}", "name": "echo", "input": text}
    return {"id": f"m{n}", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
            "content": [{"type": "text", "text": "done"}] if done else [call],
            "stop_reason": "end_turn" if done else "tool_use", "stop_sequence": None,
            "usage": {"input_tokens": 100, "output_tokens": 10}}
async def serve(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            size = next(int(l.split(":")[1]) for l in head.lower().split("\r\n") if l.startswith("content-length"))
            data = json.dumps(answer(head.split(" ")[1], await reader.readexactly(size))).encode()
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            writer.write(head % len(data) + data)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**24, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


@contextlib.contextmanager
def running_model() -> Generator[str]:
    """The address; `<address>/50` is a model that calls its tool fifty times."""
    process = subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()
