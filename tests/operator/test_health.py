"""The HTTP server for probes and scrapes."""

import aiohttp
import pytest

from v4_core.errors import ConfigError
from v4_operator.health import HealthServer


async def test_probes_and_metrics() -> None:
    reasons = ["not listed yet: pods", ""]
    server = HealthServer("127.0.0.1", 0, lambda: reasons.pop(0))
    address = await server.start()
    async with aiohttp.ClientSession() as session:

        async def get(path: str) -> tuple[int, str]:
            async with session.get(f"http://{address}{path}") as response:
                return response.status, await response.text()

        assert await get("/healthz") == (200, "ok\n")
        assert await get("/readyz") == (503, "not listed yet: pods\n")
        assert await get("/readyz") == (200, "ok\n")
        status, text = await get("/metrics")
        assert status == 200
        assert "v4serve_operator_reconcile_seconds_count" in text
        assert "process_cpu_seconds_total" in text
    await server.close()


async def test_a_port_in_use() -> None:
    first = HealthServer("127.0.0.1", 0, str)
    port = int((await first.start()).rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: .*; choose another --health-port"):
        await HealthServer("127.0.0.1", port, str).start()
    await first.close()
