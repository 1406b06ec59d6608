"""The few questions that the machine itself asks an API server: JSON over one kept connection."""

import http.client
import json
import ssl
from pathlib import Path
from typing import Any

_TIMEOUT_SECONDS = 10


class ClosingSocket(ssl.SSLSocket):
    """Closed when it is lost: `ssl` leaves one open, out of reach, whose connection was reset before the handshake."""

    def __del__(self) -> None:
        self.close()


class Api:
    """One API server, asked by one thread."""

    def __init__(self, port: int, pki: Path) -> None:
        """The server behind a port on loopback; `pki` has ca.crt, admin.crt and admin.key."""
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.sslsocket_class = ClosingSocket
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self._connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=_TIMEOUT_SECONDS)

    def get(self, path: str) -> Any:
        """The answer's JSON, or None for an answer other than 200. Raises OSError, http.client.HTTPException."""
        status, body = self._ask(path)
        return json.loads(body) if status == 200 else None

    def ready(self) -> bool:
        """Whether the server says that it is ready."""
        try:
            return self._ask("/readyz") == (200, b"ok")
        except (OSError, http.client.HTTPException):
            return False

    def _ask(self, path: str) -> tuple[int, bytes]:
        try:
            self._connection.request("GET", path)
            with self._connection.getresponse() as answer:  # an answer that breaks off holds the socket open
                return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
