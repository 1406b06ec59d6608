"""The operator's metrics of a recorded rollout, served like the operator's, without a cluster. One run, one process:

python -m tests.observability.recorded_operator

prints its address, tells a rollout of three workers, a second at a time, again and again, and ends with its standard
input. What the operator does with a real cluster is tests/cluster's matter.
"""

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import start_http_server

from v4_core.kubernetes import DEPLOYMENT_LABEL, REVISION_LABEL
from v4_operator import metrics
from v4_operator.kube.cache import Children, Parents

NAMESPACE = "demo"
_WORKERS = 3
_STEP_SECONDS = 1.0


@contextmanager
def recorded_operator() -> Iterator[str]:
    """A process that serves it, within the context, which yields host:port."""
    command = [sys.executable, "-m", "tests.observability.recorded_operator"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        address = process.stdout.readline().strip()
        assert address, "the recorded operator did not start: see its last lines above"
        yield address
        process.stdin.close()


def main() -> None:
    """Serve until standard input ends."""
    parents, children = Parents(), Children(lambda _: None)
    metrics.DEPLOYMENTS.show(parents.items, children.of)
    server, thread = start_http_server(0, "127.0.0.1", metrics.REGISTRY)
    ended = threading.Event()
    threading.Thread(target=_read_to_the_end, args=(ended,)).start()
    for step in itertools.count():
        _tell(parents, children, step)
        if step == 0:
            print(f"127.0.0.1:{server.server_address[1]}", flush=True)
        if ended.wait(_STEP_SECONDS):
            break
    server.shutdown()
    server.server_close()
    thread.join()


def _read_to_the_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


def _tell(parents: Parents, children: Children, step: int) -> None:
    """What the operator saw and did in one second."""
    updated = step // 4 % (_WORKERS + 1)
    done = updated == _WORKERS
    conditions = [
        _condition("Ready", done, "Serving" if done else "RollingOut"),
        _condition("Progressing", not done, "Exchanging" if not done else "Complete"),
        _condition("Degraded", False, "AllWell"),
    ]
    pool = {"desired": _WORKERS, "ready": _WORKERS - (not done), "updated": updated}
    parents.put(_parent("demo", step, {"conditions": conditions, "prefill": pool, "decode": pool}))
    lacking = [_condition("Ready", False, "NoRoom"), _condition("Degraded", True, "CapacityMismatch")]
    parents.put(_parent("large", step, {"conditions": lacking, "prefill": {"desired": 1, "ready": 0, "updated": 0}}))
    for number, revision in enumerate(("former", "wanted")):
        children.put(_child(f"demo-{revision}", revision, step, number))
    metrics.LEADER.set(1)
    metrics.QUEUE_LENGTH.set(step % 3)
    metrics.RECONCILES.labels("ok").inc()
    metrics.RECONCILES.labels("error").inc(step % 5 == 0)
    metrics.ERRORS.labels("api").inc(step % 5 == 0)
    metrics.RECONCILE_SECONDS.observe((0.0008, 0.002, 0.04, 0.2)[step % 4])
    metrics.API_WRITES.labels("patch", "V4Deployment").inc()
    metrics.API_WRITES.labels("create", "Deployment").inc(step % 4 == 0)
    metrics.WATCH_RESTARTS.labels("Pod").inc(step % 10 == 0)
    metrics.TIME_TO_READY.observe((8, 25, 90)[step % 3])


def _condition(kind: str, holds: bool, reason: str) -> dict[str, str]:
    return {"type": kind, "status": str(holds), "reason": reason}


def _parent(name: str, step: int, status: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": _metadata(name, step), "status": status}


def _child(name: str, revision: str, step: int, number: int) -> dict[str, Any]:
    labels = {DEPLOYMENT_LABEL: "demo", REVISION_LABEL: revision}
    return {"kind": "Deployment", "metadata": _metadata(f"{name}-{number}", step) | {"labels": labels}}


def _metadata(name: str, step: int) -> dict[str, Any]:
    seen = {"resourceVersion": str(step + 1), "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"namespace": NAMESPACE, "name": name, "uid": name, **seen}


if __name__ == "__main__":
    main()
