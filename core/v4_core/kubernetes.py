"""Names that operator, router and workers share in Kubernetes: labels, ports, file names. Talks to no cluster."""

from collections.abc import Mapping
from typing import Any, Literal

Json = Mapping[str, Any]  # a Kubernetes object, or a part of one, as JSON

GROUP = "v4serve.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "V4Deployment"
PLURAL = "v4deployments"

# Labels of every child and of the pods of pools and routers.
DEPLOYMENT_LABEL = f"{GROUP}/deployment"  # name of the V4Deployment
ROLE_LABEL = f"{GROUP}/role"  # prefill | decode | pair | router | download
REVISION_LABEL = f"{GROUP}/revision"  # only on workers; workers of one revision may exchange caches
ROLE_ALIAS_LABEL = "llm-d.ai/role"  # prefill | decode | both; llm-d's endpoint picker reads it
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGER = "v4serve-operator"

WorkerRole = Literal["prefill", "decode"]

# Routers find a worker by the name of its container port, so that one pod may hold a worker of each role.
WORKER_PORTS: dict[WorkerRole, int] = {"prefill": 5101, "decode": 5102}  # gRPC
MONITORING_PORTS = {"prefill": 9101, "decode": 9102, "router": 9100}  # HTTP: /health, /ready, /metrics and others
ROUTER_PORT = 8000  # OpenAI API

API_KEYS_FILE = "keys.yaml"  # entry of the API key Secret that the router reads: key -> tenant
API_KEY_ENTRY = "key"  # entry of the same Secret with the generated key alone, for users
TOKEN_FILE = "token"  # entry of the component token's Secret
POLICY_FILE = "policy.yaml"  # entry of the router's ConfigMap
