"""The operator as a process with kopf and a small API server: start, handover, loss of leadership, and shutdown."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.kube.fake_server import FakeServer, status
from tests.operator.conftest import until
from tests.operator.test_runtime import PARENT, parent
from v4_core.held_ports import held_for, held_ports
from v4_core.kubernetes import API_VERSION
from v4_operator.kube import leader_election

LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/v4serve-operator"
CHILD = "/api/v1/namespaces/n/configmaps/d-config"


class Replica:
    """One replica of the operator."""

    def __init__(self, folder: Path, port: int, renew_seconds: float, **config: Any) -> None:
        """`port` is reserved for the replica."""
        self.port, self._renew_seconds, self._folder = port, renew_seconds, folder
        base = {"worker_image": "w:1", "router_image": "r:1", "health_port": self.port, "all_namespaces": True}
        self._config = folder / f"{self.port}.yaml"
        self._config.write_text(yaml.safe_dump({**base, **config}))
        self.log = folder / f"{self.port}.log"

    async def start(self) -> "Replica":
        with self.log.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "tests.operator.few_objects", str(self._config), str(self._renew_seconds)),
                env={**os.environ, "KUBECONFIG": str(self._folder / "kubeconfig"), **held_for([self.port])},
                stdout=log,
                stderr=log,
            )
        return self

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session:
            try:
                async with session.get(f"http://127.0.0.1:{self.port}{path}") as response:
                    return response.status, await response.text()
            except aiohttp.ClientError:
                return 0, ""

    async def serves(self) -> None:
        """Waits until the replica leads and has listed everything."""
        async with asyncio.timeout(60):
            while not self.says("serving ") or (await self.get("/readyz"))[0] != 200:
                assert self.process.returncode is None, self.log.read_text()
                await asyncio.sleep(0.05)

    async def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return await self.ended()

    async def ended(self) -> int:
        return await asyncio.wait_for(self.process.wait(), 60)

    def says(self, text: str) -> bool:
        return text in self.log.read_text()


class Folder:
    """Starts replicas, and stops those that still run at the end."""

    def __init__(self, path: Path, ports: Sequence[int]) -> None:
        self._path, self._ports, self._made = path, iter(ports), list[Replica]()

    async def start(self, renew_seconds: float = leader_election.RENEW_SECONDS, **config: Any) -> Replica:
        self._made.append(await Replica(self._path, next(self._ports), renew_seconds, **config).start())
        return self._made[-1]

    async def close(self) -> None:
        for replica in self._made:
            if replica.process.returncode is None:
                await replica.stop(signal.SIGKILL)


@pytest.fixture
async def replicas(server: FakeServer, tmp_path: Path) -> AsyncIterator[Folder]:
    with held_ports("127.0.0.1", 2) as ports:
        folder = Folder(tmp_path, ports)
        yield folder
        await folder.close()


def holder(server: FakeServer) -> str:
    return str(server.objects.get(LEASE, {}).get("spec", {}).get("holderIdentity", ""))


async def test_serves_until_a_signal_and_kopf_writes_nothing(server: FakeServer, replicas: Folder) -> None:
    replica = await replicas.start()
    await replica.serves()
    assert holder(server)
    await server.put(PARENT, parent())
    await until(lambda: CHILD in server.objects)
    await until(lambda: "status" in server.objects[PARENT])
    assert (await replica.get("/healthz"))[0] == 200
    assert 'api_writes_total{kind="ConfigMap",verb="apply"} 1.0' in (await replica.get("/metrics"))[1]
    known = set(server.objects[PARENT]["metadata"]) - {"resourceVersion"}
    assert known == {"namespace", "name", "uid", "generation", "creationTimestamp"}
    assert await replica.stop() == 0
    assert holder(server) == "", "the Lease was released"
    writes = {request for request in server.requests if not request.startswith("GET")}
    assert {request for request in writes if "v4deployments" in request} == {f"PATCH {PARENT}/status"}
    assert not replica.says("Traceback")


async def test_a_second_replica_waits_ready_and_takes_over(server: FakeServer, replicas: Folder) -> None:
    first = await replicas.start()
    await first.serves()
    leader = holder(server)
    second = await replicas.start()
    await until(lambda: second.says(f"waiting: {leader} leads"))
    assert (await second.get("/readyz"))[0] == (await second.get("/healthz"))[0] == 200
    await server.put(PARENT, parent())
    await until(lambda: CHILD in server.objects)
    assert await first.stop() == 0
    await until(lambda: second.says("leading as "))
    await server.remove(CHILD)
    await until(lambda: CHILD in server.objects)
    assert await second.stop() == 0


async def test_a_stolen_lease_ends_the_process_at_once(server: FakeServer, replicas: Folder) -> None:
    replica = await replicas.start(renew_seconds=0.5)
    await replica.serves()
    live = server.objects[LEASE]
    await server.put(LEASE, {**live, "spec": {**live["spec"], "holderIdentity": "thief"}})
    assert await replica.ended() == 1
    assert replica.says("CRITICAL v4_operator.process: ending at once: leadership is lost: thief holds the Lease now")
    assert holder(server) == "thief"


async def test_the_operator_waits_for_the_custom_resource_definition(server: FakeServer, replicas: Folder) -> None:
    definition = server.kinds.pop(API_VERSION)
    replica = await replicas.start()
    await until(lambda: replica.log.exists() and replica.says("the cluster does not know v4deployments.v4serve.dev"))
    code, text = await replica.get("/readyz")
    assert (code, "install the chart" in text) == (503, True)
    assert (await replica.get("/healthz"))[0] == 200
    server.kinds[API_VERSION] = definition
    await replica.serves()
    assert await replica.stop(signal.SIGINT) == 0


async def test_a_signal_ends_every_wait(server: FakeServer, replicas: Folder) -> None:
    del server.kinds[API_VERSION]
    first = await replicas.start()
    await until(lambda: first.says("the cluster does not know"))
    second = await replicas.start()
    await until(lambda: second.says("waiting: "))
    assert await second.stop() == 0
    assert await first.stop() == 0
    assert holder(server) == ""


async def test_only_the_given_namespaces_are_requested(server: FakeServer, replicas: Folder) -> None:
    replica = await replicas.start(all_namespaces=False, namespaces=["n", "m"])
    await replica.serves()
    await server.put(PARENT, parent())
    await until(lambda: CHILD in server.objects)
    asked = {request.removeprefix("GET ") for request in server.requests if request.startswith("GET")}
    plurals = {plural for names in server.kinds.values() for plural in names}
    assert not [path for path in asked if path.rpartition("/")[2] in plurals and "/namespaces/" not in path]
    assert await replica.stop() == 0


async def test_an_api_server_that_is_away_for_a_while(server: FakeServer, replicas: Folder) -> None:
    replica = await replicas.start()
    await replica.serves()
    server.fault = lambda _: status(503, "ServiceUnavailable", "starting")
    server.cut_streams()
    asked = len(server.requests)
    await until(lambda: len(server.requests) > asked + 10)
    server.fault = lambda _: None
    await server.put(PARENT, parent())
    await until(lambda: CHILD in server.objects)
    assert await replica.stop() == 0


async def test_ends_when_v4deployments_are_no_longer_served(server: FakeServer, replicas: Folder) -> None:
    replica = await replicas.start()
    await replica.serves()
    server.fault = lambda r: status(404, "NotFound") if r.path.endswith("/v4deployments") else None
    server.cut_streams()
    assert await replica.ended() == 1
    assert replica.says("V4Deployments can no longer be watched")
    assert holder(server) == ""


async def test_no_cluster(tmp_path: Path, replicas: Folder) -> None:
    (tmp_path / "kubeconfig").write_text("{}")
    replica = await replicas.start()
    assert await replica.ended() == 1
    assert replica.says("the Kubernetes API cannot be reached")
