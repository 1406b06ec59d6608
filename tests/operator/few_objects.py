"""A desired state of a few objects, for tests of the code that brings it about.

`python -m tests.operator.few_objects CONFIG RENEW_SECONDS` runs an operator that desires these objects and renews its
Lease every RENEW_SECONDS.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

from v4_core.kubernetes import API_VERSION, DEPLOYMENT_LABEL, KIND, MANAGED_BY_LABEL, MANAGER, ROLE_LABEL, Json
from v4_core.logs import configure
from v4_core.settings import load
from v4_operator.config import OperatorConfig
from v4_operator.desired import DesiredState
from v4_operator.kube import leader_election
from v4_operator.manifests.settings import Settings
from v4_operator.observed.compare import CREATE_ONLY_ANNOTATION
from v4_operator.observed.live import Observed
from v4_operator.process import run
from v4_operator.spec.parse import parse
from v4_operator.spec.v4deployment import V4Deployment


def few_objects(parent: Json, observed: Observed, settings: Settings) -> DesiredState:
    """Desires a Secret, a ServiceAccount, a claim, a ConfigMap, a Service, two Deployments and a disruption budget."""
    v4d = parse(parent)
    names = ["prefill", "decode"]
    live = {(child["kind"], child["metadata"]["name"]): child for child in observed.children}
    objects = [
        secret(v4d),
        child(v4d, "v1", "ServiceAccount", "worker", {"automountServiceAccountToken": False}),
        claim(v4d),
        child(v4d, "v1", "ConfigMap", "config", {"data": {"image": settings.worker_image}}),
        service(v4d),
        *(workers(v4d, name, v4d.spec.decode.replicas) for name in names),
        budget(v4d, settings),
    ]
    wanted = {(obj["kind"], obj["metadata"]["name"]) for obj in objects}
    prunable = {"ConfigMap", "Deployment", "Service"}
    stale = tuple(obj for key, obj in live.items() if key not in wanted and obj["kind"] in prunable)
    return DesiredState(tuple(objects), stale, status(v4d, observed, len(names)))


def status(v4d: V4Deployment, observed: Observed, wanted: int) -> dict[str, Any]:
    """The status: Ready once all Deployments exist."""
    found = sum(child["kind"] == "Deployment" for child in observed.children)
    state = "True" if found == wanted else "False"
    before: Json = next((c for c in observed.status.get("conditions", ()) if c["type"] == "Ready"), {})
    time = observed.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {
        "type": "Ready",
        "status": state,
        "reason": "Complete" if found == wanted else "Incomplete",
        "message": f"{found} of {wanted}",
        "observedGeneration": v4d.generation,
        "lastTransitionTime": before["lastTransitionTime"] if before.get("status") == state else time,
    }
    return {"observedGeneration": v4d.generation, "endpoint": f"http://{v4d.name}", "conditions": [ready]}


def child(v4d: V4Deployment, api_version: str, kind: str, part: str, body: dict[str, Any]) -> dict[str, Any]:
    """An object that its V4Deployment owns."""
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": v4d.name,
        "uid": v4d.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {
        "name": f"{v4d.name}-{part}",
        "namespace": v4d.namespace,
        "labels": {DEPLOYMENT_LABEL: v4d.name, ROLE_LABEL: part, MANAGED_BY_LABEL: MANAGER},
        "ownerReferences": [owner],
    }
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}


def secret(v4d: V4Deployment) -> dict[str, Any]:
    """A Secret with other content in every desired state."""
    made = child(v4d, "v1", "Secret", "token", {"stringData": {"token": str(id(v4d))}})
    made["metadata"]["annotations"] = {CREATE_ONLY_ANNOTATION: "true"}
    return made


def claim(v4d: V4Deployment) -> dict[str, Any]:
    """A claim without an owner."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1024Mi"}}}
    made = child(v4d, "v1", "PersistentVolumeClaim", "model", {"spec": spec})
    made["metadata"]["annotations"] = {CREATE_ONLY_ANNOTATION: "true"}
    del made["metadata"]["ownerReferences"]
    return made


def service(v4d: V4Deployment) -> dict[str, Any]:
    """The Service of the router."""
    port = {"name": "http", "port": 80, "targetPort": 8000, "protocol": "TCP"}
    return child(v4d, "v1", "Service", "router", {"spec": {"ports": [port], "selector": {ROLE_LABEL: "router"}}})


def workers(v4d: V4Deployment, role: str, replicas: int) -> dict[str, Any]:
    """A Deployment with quantities that the server stores in another form."""
    labels = {DEPLOYMENT_LABEL: v4d.name, ROLE_LABEL: role}
    container = {
        "name": "worker",
        "image": "example.org/none:1",
        "args": ["--memory", "1024Mi"],
        "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}},
        "env": [{"name": "EMPTY", "value": ""}],
    }
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container], "volumes": []}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return child(v4d, "apps/v1", "Deployment", role, {"spec": spec})


def budget(v4d: V4Deployment, settings: Settings) -> dict[str, Any]:
    """A disruption budget in the API version that the server has."""
    kind = "PodDisruptionBudget"
    version = "policy/v1" if ("policy/v1", kind) in settings.kinds else "policy/v1beta1"
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": {DEPLOYMENT_LABEL: v4d.name}}}
    return child(v4d, version, kind, "decode", {"spec": spec})


if __name__ == "__main__":
    config = load(OperatorConfig, Path(sys.argv[1]), {})
    leader_election.RENEW_SECONDS = float(sys.argv[2])
    configure(config.log_format)
    run(dataclasses.replace(config, health_host="127.0.0.1"), few_objects)
