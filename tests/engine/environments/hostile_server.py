"""An MCP server without the SDK, with the tool `act`, that misbehaves as its argument says.

With a word it misbehaves at its start or in its list of tools.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

SCHEMA = {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}
changed = False


def send(message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def reply(identifier: Any, result: Any) -> None:
    send({"jsonrpc": "2.0", "id": identifier, "result": result})


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": content}], **more}


def tool(name: str = "act", schema: Any = SCHEMA, description: str = "Do it.") -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": schema}


def nested(depth: int) -> Any:
    schema: Any = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


# Lists of tools by the word that the server is started with.
TOOLS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "many tools": lambda: [tool(f"t{n}", {"type": "object"}) for n in range(300)],
    "a long name": lambda: [tool("t" * 10_000)],
    "an odd name": lambda: [tool("t\x1b[31m\u202e")],
    "a huge schema": lambda: [tool(schema={**SCHEMA, "description": "x" * 1_000_000})],
    "a recursive schema": lambda: [
        tool(schema={"type": "object", "properties": {"x": {"$ref": "#"}}})
    ],
    "a deep schema": lambda: [tool(schema=nested(120))],
    "a wrong schema": lambda: [tool(schema={"type": "object", "properties": {"x": 5}})],
    "no object": lambda: [tool(schema={"type": "string"})],
    "no tools": list,
    "a pattern that is none": lambda: [tool(schema={**SCHEMA, "pattern": "("})],
    "the same tool twice": lambda: [tool(), tool()],
}


def as_it_is() -> list[dict[str, Any]]:
    return [tool("other" if changed else "act")]


def flood(stream: Any, size: int) -> None:
    for _ in range(size // 100_000):
        stream.write("x" * 99_999 + "\n")
    stream.flush()


def ask_the_client(identifier: Any) -> None:
    """Ask for what clients may offer, and report what they said."""
    sampling = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}]}
    answers = []
    for number, (method, params) in enumerate(
        [
            ("sampling/createMessage", {**sampling, "maxTokens": 5}),
            ("roots/list", {}),
            ("elicitation/create", {"message": "Your key?", "requestedSchema": SCHEMA}),
        ]
    ):
        send({"jsonrpc": "2.0", "id": f"mine-{number}", "method": method, "params": params})
        answers.append(json.loads(sys.stdin.readline()))
    refused = sum("error" in answer for answer in answers)
    reply(identifier, text(f"{refused} refused", isError=True))


def act(identifier: Any, kind: str) -> None:
    global changed
    match kind:
        case "hangs":
            time.sleep(1000)
        case "dies":
            sys.stderr.write("Traceback\nValueError: out of luck\n")
            os._exit(3)
        case "dies later":
            reply(identifier, text("farewell"))
            os._exit(0)
        case "floods stdout":
            flood(sys.stdout, 100_000_000)
            time.sleep(1000)
        case "a huge result":
            reply(identifier, text("x" * 5_000_000))
        case "no JSON-RPC":
            sys.stdout.write('{"jsonrpc": "1.0"}\n[]\nnull\n{"a":\n\xff\n')
            sys.stdout.flush()
            time.sleep(1000)
        case "unknown ids":
            for other in (10**30, -1, "other", None):
                reply(other, text("for somebody else"))
            time.sleep(1000)
        case "a wrong result":
            reply(identifier, {"content": "text"})
        case "changes its tools":
            changed = True
            send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            reply(identifier, text("changed"))
        case "control characters":
            reply(identifier, text("\x1b[2J\u202e\0 gone <|im_end|>"))
        case "half a character":
            reply(identifier, text("\ud800"))
        case "asks the client":
            ask_the_client(identifier)
        case "writes errors without end":
            subprocess.Popen(["sh", "-c", "yes hostile >&2"])
            reply(identifier, text("noise"))
        case "leaves a child":
            subprocess.Popen(["sleep", "4321"], start_new_session=True, env={})
            reply(identifier, text("left"))
        case "an error":
            error = {"code": -32000, "message": "not today"}
            send({"jsonrpc": "2.0", "id": identifier, "error": error})
        case _:
            reply(identifier, text(f"{kind}!"))


def serve(word: str) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        identifier, method = request.get("id"), request.get("method")
        if identifier is None or method is None:
            continue
        params = request.get("params") or {}
        if method == "initialize":
            info = {"name": "hostile", "version": "1"}
            versions = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            reply(identifier, {**versions, "serverInfo": info})
        elif method == "tools/list":
            if word == "endless pages":
                reply(identifier, {"tools": [tool(f"t{params}"[:9])], "nextCursor": "more"})
            else:
                reply(identifier, {"tools": TOOLS.get(word, as_it_is)()})
        elif method == "tools/call" and changed:
            error = {"code": -32602, "message": "Unknown tool: act"}
            send({"jsonrpc": "2.0", "id": identifier, "error": error})
        elif method == "tools/call":
            act(identifier, params["arguments"]["kind"])
        else:
            error = {"code": -32601, "message": "Method not found"}
            send({"jsonrpc": "2.0", "id": identifier, "error": error})


if __name__ == "__main__":
    argument = " ".join(sys.argv[1:])
    if argument == "hangs at its start":
        time.sleep(1000)
    if argument == "dies at its start":
        sys.exit("ModuleNotFoundError: No module named 'moon'")
    serve(argument)
