"""Asks routers what they know of their workers. A router that does not answer in time has nothing to say."""

import asyncio
import json
import logging
from collections.abc import Iterable
from typing import Any

import aiohttp

from v4_core.kubernetes import MONITORING_PORTS, ROLE_LABEL, Json

log = logging.getLogger(__name__)

_TIMEOUT = aiohttp.ClientTimeout(total=1.0)
_LARGEST = 4 << 20  # bytes of an answer


class Fleets:
    """One HTTP session for all routers."""

    def __init__(self, port: int = MONITORING_PORTS["router"]) -> None:
        self._port = port
        self._session = aiohttp.ClientSession(timeout=_TIMEOUT)

    async def close(self) -> None:
        """End all connections."""
        await self._session.close()

    async def ask(self, children: Iterable[Json]) -> list[dict[str, Any]]:
        """The answers of the running router pods among `children`, all asked at once."""
        answers = await asyncio.gather(*map(self._one, router_addresses(children)))
        return [answer for answer in answers if answer is not None]

    async def _one(self, address: str) -> dict[str, Any] | None:
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{self._port}/fleet"
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                response.raise_for_status()
                body = b""
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > _LARGEST:
                        raise ValueError(f"more than {_LARGEST} bytes")
                return _checked(json.loads(body))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.debug("%s: %s", url, error or type(error).__name__)
            return None


def router_addresses(children: Iterable[Json]) -> list[str]:
    """Addresses of router pods that may answer."""
    return [
        pod["status"]["podIP"]
        for pod in children
        if pod["kind"] == "Pod"
        and pod["metadata"]["labels"].get(ROLE_LABEL) == "router"
        and not pod["metadata"].get("deletionTimestamp")
        and pod.get("status", {}).get("phase") == "Running"
        and pod["status"].get("podIP")
    ]


def _checked(answer: Any) -> dict[str, Any]:
    """Of the agreed shape as far as readers rely on it. Raises ValueError."""
    if not isinstance(answer, dict) or not isinstance(answer.get("router"), dict):
        raise ValueError("no fleet")
    for name in ("workers", "revisions"):
        if not isinstance(answer.get(name), list) or not all(isinstance(entry, dict) for entry in answer[name]):
            raise ValueError(f"{name} is no list of mappings")
    return answer
