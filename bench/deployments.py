"""What the operator costs on a local API server: `python -m bench.deployments [--counts 0 9] [--json]`.

No node runs pods. This program marks the pods ready and serves as every router, at 127.0.0.1:9100, so that
V4Deployments become Ready and then idle. The yardstick for the time until all children exist is the time to create the
same objects without an operator; the yardstick for the cost of idle V4Deployments is the cost of none.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from tests.cluster.machine.errors import PartMissing
from tests.cluster.machine.layout import NODE
from tests.cluster.machine.local import LocalCluster

from bench.plain import Object, plain
from v4_core.kubernetes import (
    API_VERSION,
    DEPLOYMENT_LABEL,
    KIND,
    MANAGED_BY_LABEL,
    MANAGER,
    MONITORING_PORTS,
    REVISION_LABEL,
)
from v4_kube.client import KubeClient, Resource
from v4_operator.kube.discovery import Discovery

DEFINITION = Path(__file__).parents[1] / "charts/v4serve/files/crd.yaml"
DEPLOYMENTS = Resource("apps/v1", "Deployment", "deployments")
PODS = Resource("v1", "Pod", "pods")
V4DEPLOYMENTS = Resource(API_VERSION, KIND, "v4deployments")
CHILDREN = {"labelSelector": f"{MANAGED_BY_LABEL}={MANAGER}"}
HEALTH = "127.0.0.1:18780"
PARALLEL = 32


class Bench:
    """A benchmark in one namespace of one cluster."""

    def __init__(self, api: KubeClient) -> None:
        self.api = api
        self.namespace = f"bench-{uuid.uuid4().hex[:8]}"
        self.revisions: set[str] = set()  # that the router reports as served
        self.plain = f"{self.namespace}-plain"  # namespace of the same objects without an operator

    async def items(self, resource: Resource, query: dict[str, str] | None = None) -> list[Any]:
        answer = await self.api.get(resource.path(self.namespace), query)
        return list(answer["items"])

    async def make(self, names: Iterable[str]) -> None:
        spec: dict[str, Any] = {"model": {"demo": {}}}
        bodies = [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "metadata": {"namespace": self.namespace, "name": name},
                "spec": spec,
            }
            for name in names
        ]
        await many(bodies, lambda body: self.api.create(V4DEPLOYMENTS, body))

    async def children(self, names: set[str]) -> list[tuple[Resource, Object]]:
        """Return the objects that were created for these V4Deployments, as one would create them by hand."""
        discovery = Discovery(self.api)
        made = []
        for resource in (await discovery.refresh()).children():
            if resource.kind != "Pod":
                items = await self.items(resource, CHILDREN)
                kind = {"apiVersion": resource.api_version, "kind": resource.kind}
                mine = [item for item in items if item["metadata"]["labels"][DEPLOYMENT_LABEL] in names]
                made += [(resource, plain(kind | item, self.plain)) for item in mine]
        return made

    async def by_hand(self, names: set[str]) -> float:
        """Return the seconds to create the objects of these V4Deployments without an operator."""
        children = await self.children(names)
        started = time.perf_counter()
        await many(children, lambda child: self.api.create(*child))
        return time.perf_counter() - started

    async def complete(self, count: int) -> bool:
        """Whether `count` V4Deployments have all their Deployments, which are written last."""
        found = await self.items(DEPLOYMENTS, CHILDREN)
        self.revisions |= {
            d["metadata"]["labels"][REVISION_LABEL] for d in found if REVISION_LABEL in d["metadata"]["labels"]
        }
        return len(found) == 3 * count

    async def mark_ready(self) -> None:
        """Set the status of every pod to ready, as a kubelet would."""
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status = {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}], "conditions": [ready]}
        pods = [pod for pod in await self.items(PODS) if pod.get("status", {}).get("phase") != "Running"]
        await many(
            pods, lambda pod: self.api.patch_status(PODS, self.namespace, pod["metadata"]["name"], {"status": status})
        )

    async def ready(self, count: int) -> bool:
        await self.mark_ready()
        parents = await self.items(V4DEPLOYMENTS)
        conditions = [c for p in parents for c in p.get("status", {}).get("conditions", ()) if c["type"] == "Ready"]
        return [condition["status"] for condition in conditions] == ["True"] * count

    async def measure(self, count: int, seconds: float) -> dict[str, Any]:
        """Bring the number of V4Deployments to `count`, wait until they idle, and measure for `seconds`."""
        began = len(await self.items(V4DEPLOYMENTS))
        names = [f"d{index}" for index in range(began, count)]
        started = time.perf_counter()
        await self.make(names)
        await until(lambda: self.complete(count), 600)
        created = time.perf_counter() - started
        await until(lambda: self.ready(count), 600)
        await quiet()
        before, at = await figures(), time.perf_counter()
        await asyncio.sleep(seconds)
        after, lasted = await figures(), time.perf_counter() - at
        by_hand = await self.by_hand(set(names))
        return {
            "v4deployments": count,
            "added": count - began,
            "seconds_until_all_children": round(created, 2),
            "seconds_by_hand": round(by_hand, 2),
            "cpu_percent_idle": round(100 * (after["cpu"] - before["cpu"]) / lasted, 2),
            "reconciles_per_second_idle": round((after["reconciles"] - before["reconciles"]) / lasted, 2),
            "writes_idle": int(after["writes"] - before["writes"]),
            "memory_mib": round(after["memory"] / 2**20),
        }

    async def fleet(self, _: web.Request) -> web.Response:
        """Answer as a router with healthy workers of every revision does."""
        known = {"probed": True, "error": "", "transport": "grpc", "transferred_bytes": 0, "transfer_seconds": 0.0}
        revisions = [{"revision": revision, **known} for revision in self.revisions]
        router = {"version": "0", "served_name": "demo", "ready": True, "requests": 0}
        return web.json_response({"router": router, "workers": [], "revisions": revisions})


async def figures() -> dict[str, float]:
    """Return CPU, API writes, reconciles and memory of the operator's process, from its metrics."""
    async with aiohttp.ClientSession() as session, session.get(f"http://{HEALTH}/metrics") as response:
        lines = [line.rpartition(" ") for line in (await response.text()).splitlines() if not line.startswith("#")]
    values = {name: float(value) for name, _, value in lines}
    writes = sum(v for k, v in values.items() if k.startswith("v4serve_operator_api_writes_total") and "Lease" not in k)
    reconciles = sum(v for k, v in values.items() if k.startswith("v4serve_operator_reconciles_total"))
    memory = values["process_resident_memory_bytes"]
    return {"cpu": values["process_cpu_seconds_total"], "writes": writes, "reconciles": reconciles, "memory": memory}


async def quiet() -> None:
    """Wait until the operator has written nothing for 30 seconds."""
    last, since = -1.0, time.perf_counter()
    while time.perf_counter() - since < 30:
        writes = (await figures())["writes"]
        if writes != last:
            last, since = writes, time.perf_counter()
        await asyncio.sleep(0.5)


async def many(items: Iterable[Any], work: Callable[[Any], Awaitable[Any]]) -> None:
    """Run `work` for all items, up to PARALLEL at once."""
    limit = asyncio.Semaphore(PARALLEL)

    async def one(item: Any) -> None:
        async with limit:
            await work(item)

    await asyncio.gather(*map(one, items))


async def until(condition: Callable[[], Awaitable[bool]], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - the condition is about another process
            await asyncio.sleep(0.05)


@asynccontextmanager
async def prepared(api: KubeClient) -> AsyncIterator[Bench]:
    """Prepare namespaces, the definition, one router for all V4Deployments, and the operator."""
    bench = Bench(api)
    # API servers before 1.25 drop the definition's CEL rules; with validation, kubectl would refuse to apply them.
    made = kubectl("apply", "--validate=false", "-f", str(DEFINITION)).endswith("created")
    for namespace in (bench.namespace, bench.plain):
        kubectl("create", "namespace", namespace)
    app = web.Application()
    app.router.add_get("/fleet", bench.fleet)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", MONITORING_PORTS["router"]).start()
    host, port = HEALTH.split(":")
    flags = {"namespace": bench.namespace, "lease-namespace": bench.namespace, "health-host": host, "health-port": port}
    flags |= {"worker-image": "none:1", "router-image": "none:1"}
    command = [sys.executable, "-m", "v4_cli.main", "operator", *(f"--{key}={value}" for key, value in flags.items())]
    operator = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await until(answers, 60)
        yield bench
    finally:
        operator.terminate()
        await operator.wait()
        await runner.cleanup()
        kubectl("delete", "namespace", bench.namespace, bench.plain, "--wait=false")
        if made:
            kubectl("delete", "-f", str(DEFINITION), "--wait=false")


def kubectl(*args: str) -> str:
    """Run kubectl and return its output."""
    return subprocess.run(["kubectl", *args], check=True, capture_output=True, text=True).stdout.strip()


async def answers() -> bool:
    """Whether the operator is ready."""
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(f"http://{HEALTH}/readyz") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False


async def run(kubeconfig: Path, counts: list[int], seconds: float) -> list[dict[str, Any]]:
    """Return one row for each number of V4Deployments."""
    api = await KubeClient.connect("v4serve-bench", kubeconfig)
    try:
        async with prepared(api) as bench:
            return [await bench.measure(count, seconds) for count in sorted(counts)]
    finally:
        await api.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--counts", type=int, nargs="+", default=[0, 1, 100, 500])
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to measure idle V4Deployments")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        cluster = LocalCluster()
    except PartMissing as error:
        print(f"not measured: {error}")
        return
    with closing(cluster):
        os.environ |= cluster.environment
        kubectl("cordon", NODE)
        rows = asyncio.run(run(cluster.kubeconfig, arguments.counts, arguments.seconds))
    if arguments.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
