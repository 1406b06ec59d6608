"""A stand-in for a process of a deployment: `python stand_in.py ROLE SETTINGS [BEHAVIOUR]`. It has real sockets and no
model.

A worker listens on its port. The router answers /ready with 200 once it reaches every worker of its settings, and any
other request with one short stream.
BEHAVIOUR makes workers misbehave.
"""

import http.server
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from v4_core.held_ports import is_held

_USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 700, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 512}},
    "v4serve": {"ways": [{"transfer": {"bytes": 1_500_000, "seconds": 0.25}}]},
}


def _delta(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


def main() -> None:
    role, settings = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    behaviour = "".join(sys.argv[3:])
    if role == "router":
        _router(settings)
    if behaviour == "dies":
        print("cannot load the model")
        sys.exit(3)
    if behaviour == "ignores SIGTERM":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour == "has a child":
        print("child", subprocess.Popen(["sleep", "600"]).pid, flush=True)
    with socket.create_server((settings["host"], settings["port"]), reuse_port=is_held(settings["port"])):
        print("listening", settings["device"], flush=True)
        time.sleep(600)


def _router(settings: dict[str, Any]) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            workers = settings["prefill"] + settings["decode"]
            self.send_response(200 if self.path == "/ready" and all(map(_listens, workers)) else 503)
            self.end_headers()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            for event in (_delta("Once "), _delta("upon"), _USAGE, "[DONE]"):
                self.wfile.write(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode())

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    class Server(http.server.ThreadingHTTPServer):
        def server_bind(self) -> None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, is_held(settings["port"]))
            super().server_bind()

    Server((settings["host"], settings["port"]), Handler).serve_forever()


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
