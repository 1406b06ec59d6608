"""Asks the routers for the state of their workers. A router that does not answer within the timeout is left out."""

import asyncio
import json
import logging
from collections.abc import Iterable
from typing import Any

import aiohttp

from v4_core.kubernetes import MONITORING_PORTS, ROLE_LABEL, Json

log = logging.getLogger(__name__)

_TIMEOUT = aiohttp.ClientTimeout(total=1.0)
_LARGEST = 4 << 20  # bytes in an answer


class Fleets:
    """An HTTP session for all routers."""

    def __init__(self, port: int = MONITORING_PORTS["router"]) -> None:
        self._port = port
        self._session = aiohttp.ClientSession(timeout=_TIMEOUT)

    async def close(self) -> None:
        """Closes all connections."""
        await self._session.close()

    async def ask(self, children: Iterable[Json]) -> list[dict[str, Any]]:
        """Returns the answers of the running router pods among `children`; all are asked at the same time."""
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
                        raise ValueError(f"the answer has more than {_LARGEST} bytes")
                return _checked(json.loads(body))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.debug("%s: %s", url, error or type(error).__name__)
            return None


def router_addresses(children: Iterable[Json]) -> list[str]:
    """Addresses of the router pods that run and are not being deleted."""
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
    """Returns `answer` if it has the parts that readers rely on, and else raises ValueError."""
    if not isinstance(answer, dict) or not isinstance(answer.get("router"), dict):
        raise ValueError("the answer has no router")
    for name in ("workers", "revisions"):
        if not isinstance(answer.get(name), list) or not all(isinstance(entry, dict) for entry in answer[name]):
            raise ValueError(f"{name} is not a list of mappings")
    return answer
