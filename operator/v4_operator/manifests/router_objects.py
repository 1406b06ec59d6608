"""The router's objects: Deployment, Service, policy file, and the permission to watch pods. Pure.

Routers reload the policy file when it changes, so a change of policy does not restart them.
"""

import json
from typing import Any

from v4_core.kubernetes import API_KEYS_FILE, GROUP, MONITORING_PORTS, POLICY_FILE, ROUTER_PORT, Json
from v4_operator.manifests.deployments import deployment
from v4_operator.manifests.model_source import model_source
from v4_operator.manifests.names import child, metadata, selector
from v4_operator.manifests.pods import (
    GRACE_MARGIN_SECONDS,
    TOKEN_PATH,
    Container,
    Pod,
    container,
    log_arguments,
    probes,
    requirements,
    template,
    token_mount,
    token_volume,
)
from v4_operator.manifests.secret_objects import keys_secret
from v4_operator.manifests.settings import Settings
from v4_operator.observed.live import Live
from v4_operator.observed.objects import moment
from v4_operator.spec.v4deployment import V4Deployment

ROUTER = "router"
_POLICY_DIR = "/etc/v4serve/policy"
_KEYS_DIR = "/etc/v4serve/keys"
_ACCOUNT_ANNOTATION = f"{GROUP}/service-account"  # on router pods: uid of a recreated ServiceAccount
_START_SECONDS = 120
_REQUESTS = {"cpu": "100m", "memory": "512Mi"}


def access_objects(v4d: V4Deployment, settings: Settings) -> list[dict[str, Any]]:
    """ServiceAccounts of workers, without permissions, and of routers, which may read the namespace's pods."""
    name = child(v4d, ROUTER)
    subject = {"kind": "ServiceAccount", "name": router_account(v4d), "namespace": v4d.namespace}
    return [
        _account(v4d, settings, "worker"),
        _account(v4d, settings, ROUTER),
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": metadata(v4d, settings, name, ROUTER),
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata(v4d, settings, name, ROUTER),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [subject],
        },
    ]


def router_account(v4d: V4Deployment) -> str:
    """Name of the router's ServiceAccount."""
    return v4d.spec.router.pod.service_account or child(v4d, ROUTER)


def account_uid(v4d: V4Deployment, live: Live) -> str:
    """Uid of the router's ServiceAccount if it was created after the router's Deployment; otherwise empty.

    The operator creates the account first, so a later one replaces an account that was deleted. The router's pods then
    hold a token of the deleted account, which the API server refuses, and must be replaced. A ServiceAccount that the
    user brings is not watched.
    """
    name = child(v4d, ROUTER)
    account, deployment = live.find("ServiceAccount", name), live.find("Deployment", name)
    if deployment is None or router_account(v4d) != name:
        return ""
    if account is None:  # it is about to be recreated, which then replaces the pods once
        annotations = deployment["spec"]["template"]["metadata"].get("annotations") or {}
        return str(annotations.get(_ACCOUNT_ANNOTATION, ""))
    replaced = moment(account["metadata"]["creationTimestamp"]) > moment(deployment["metadata"]["creationTimestamp"])
    return str(account["metadata"]["uid"]) if replaced else ""


def service(v4d: V4Deployment, settings: Settings) -> dict[str, Any]:
    """The Service that clients connect to."""
    wanted = v4d.spec.router
    port = {"name": "http", "port": wanted.service_port, "targetPort": ROUTER_PORT, "protocol": "TCP"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(v4d, settings, v4d.name, ROUTER, annotations=wanted.service_annotations),
        "spec": {"type": wanted.service_type, "selector": selector(v4d, ROUTER), "ports": [port]},
    }


def endpoint(v4d: V4Deployment) -> str:
    """The base URL for OpenAI clients inside the cluster."""
    return f"http://{v4d.name}.{v4d.namespace}.svc:{v4d.spec.router.service_port}/v1"


def policy_map(v4d: V4Deployment, settings: Settings) -> dict[str, Any]:
    """The ConfigMap with the router's policy file. The router reads YAML, of which JSON is a subset."""
    policy = {
        "request_timeout_seconds": v4d.spec.router.request_timeout_seconds,
        "max_requests": v4d.spec.router.max_requests,
        "without_prefill": v4d.spec.router.without_prefill,
        "on_transfer_failure": v4d.spec.transfer.on_failure,
    }
    if v4d.spec.router.log_prompts:
        policy["log_prompts"] = True
    if v4d.spec.router.key_overlap_seconds is not None:
        policy["key_overlap_seconds"] = v4d.spec.router.key_overlap_seconds
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(v4d, settings, child(v4d, ROUTER), ROUTER),
        "data": {POLICY_FILE: json.dumps(policy, indent=2) + "\n"},
    }


def router_deployment(v4d: V4Deployment, settings: Settings, image: str, account: str = "") -> dict[str, Any]:
    """The router's Deployment. A new router is ready before an old one stops.

    A change of `account` (see `account_uid`) replaces the pods.
    """
    spec = {
        "replicas": v4d.spec.router.replicas,
        "revisionHistoryLimit": 2,
        "progressDeadlineSeconds": v4d.spec.rollout.progress_deadline_seconds,
        "selector": {"matchLabels": selector(v4d, ROUTER)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": _template(v4d, settings, image, account),
    }
    return deployment(v4d, settings, child(v4d, ROUTER), ROUTER, spec)


def _template(v4d: V4Deployment, settings: Settings, image: str, account: str) -> dict[str, Any]:
    source, keys = model_source(v4d.spec.model), keys_secret(v4d)
    monitoring = MONITORING_PORTS[ROUTER]
    volumes: list[Json] = [token_volume(v4d), {"name": "policy", "configMap": {"name": child(v4d, ROUTER)}}]
    mounts: list[Json] = [token_mount(), {"name": "policy", "mountPath": _POLICY_DIR, "readOnly": True}]
    if keys:
        volumes.append({"name": "api-keys", "secret": {"secretName": keys}})
        mounts.append({"name": "api-keys", "mountPath": _KEYS_DIR, "readOnly": True})
    if source.volume and source.mount:
        volumes.append(source.volume)
        mounts.append(source.mount)
    made = Container(
        name=ROUTER,
        image=image,
        args=[*_arguments(v4d, source.argument, bool(keys)), *log_arguments(settings)],
        resources=requirements(v4d.spec.router.resources, _REQUESTS),
        ports={"http": ROUTER_PORT, f"monitor-{ROUTER}": monitoring},
        env={"HOME": "/tmp"},
        mounts=mounts,
        probes=probes(monitoring, _START_SECONDS),
    )
    pod = Pod(
        role=ROUTER,
        containers=[container(settings, made, v4d.spec.router.pod)],
        volumes=volumes,
        annotations={_ACCOUNT_ANNOTATION: account} if account else {},
        service_account=child(v4d, ROUTER),
        api_token=True,
        grace_seconds=v4d.spec.rollout.drain_seconds + GRACE_MARGIN_SECONDS,
    )
    return template(v4d, settings, pod, v4d.spec.router.pod)


def _arguments(v4d: V4Deployment, model: str, keys: bool) -> list[str]:
    flags: dict[str, object] = {
        "--model": model,
        "--served-name": v4d.served_name,
        "--host": "0.0.0.0",
        "--port": ROUTER_PORT,
        "--monitoring-port": MONITORING_PORTS[ROUTER],
        "--namespace": v4d.namespace,
        "--deployment": v4d.name,
        "--token-file": TOKEN_PATH,
        "--policy": f"{_POLICY_DIR}/{POLICY_FILE}",
        "--drain-seconds": v4d.spec.rollout.drain_seconds,
    }
    access = ["--api-keys", f"{_KEYS_DIR}/{API_KEYS_FILE}"] if keys else ["--insecure"]
    return [ROUTER, *(str(part) for flag in flags.items() for part in flag), *access]


def _account(v4d: V4Deployment, settings: Settings, part: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(v4d, settings, child(v4d, part)),
        "automountServiceAccountToken": False,
    }
