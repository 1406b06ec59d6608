"""The few questions that the machine itself asks an API server: JSON over one kept connection."""

import http.client
import json
import ssl
from pathlib import Path
from typing import Any

_TIMEOUT_SECONDS = 10


class Api:
    """One API server, asked by one thread."""

    def __init__(self, port: int, pki: Path) -> None:
        """The server behind a port on loopback; `pki` has ca.crt, admin.crt and admin.key."""
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self._connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=_TIMEOUT_SECONDS)

    def get(self, path: str) -> Any:
        """The answer's JSON, or None for an answer other than 200. Raises OSError, http.client.HTTPException."""
        try:
            self._connection.request("GET", path)
            answer = self._connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise
        return json.loads(body) if answer.status == 200 else None

    def ready(self) -> bool:
        """Whether the server says that it is ready."""
        try:
            self._connection.request("GET", "/readyz")
            answer = self._connection.getresponse()
            return answer.read() == b"ok" and answer.status == 200
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return False

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
