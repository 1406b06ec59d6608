"""Discovers the version of the API server, its kinds and their paths, and remembers them until a refresh."""

import logging
import re
from dataclasses import dataclass, field
from typing import Any

from v4_core.kubernetes import API_VERSION, GROUP, KIND
from v4_kube.client import KubeClient, Resource
from v4_kube.errors import ApiError
from v4_operator.errors import KindMissing

log = logging.getLogger(__name__)

_GROUPS = (
    "apps",
    "batch",
    "coordination.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "security.openshift.io",
    GROUP,
)
LEASES = Resource("coordination.k8s.io/v1", "Lease", "leases")
PODS = Resource("v1", "Pod", "pods")
EVENTS = Resource("v1", "Event", "events")

# Kinds of children, each with its versions; the preferred version is first, and an old server may lack it.
_CHILDREN: tuple[tuple[str, ...], ...] = (
    ("Pod", "v1"),
    ("Service", "v1"),
    ("ConfigMap", "v1"),
    ("Secret", "v1"),
    ("ServiceAccount", "v1"),
    ("PersistentVolumeClaim", "v1"),
    ("Deployment", "apps/v1"),
    ("Job", "batch/v1"),
    ("Role", "rbac.authorization.k8s.io/v1"),
    ("RoleBinding", "rbac.authorization.k8s.io/v1"),
    ("NetworkPolicy", "networking.k8s.io/v1"),
    ("PodDisruptionBudget", "policy/v1", "policy/v1beta1"),
)


@dataclass(frozen=True)
class Features:
    """The result of one discovery."""

    version: tuple[int, int] = (0, 0)  # major, minor
    resources: dict[tuple[str, str], Resource] = field(default_factory=dict)  # by (apiVersion, kind)

    @property
    def kinds(self) -> frozenset[tuple[str, str]]:
        """Every (apiVersion, kind) of the API groups that the operator uses."""
        return frozenset(self.resources)

    @property
    def v4deployments(self) -> Resource | None:
        """The custom resource; None while its definition is missing."""
        return self.resources.get((API_VERSION, KIND))

    def children(self) -> list[Resource]:
        """The kinds to watch, each in the first of its versions that the server has."""
        found = ([self.resources.get((version, kind)) for version in versions] for kind, *versions in _CHILDREN)
        return [next(resource for resource in versions if resource) for versions in found if any(versions)]


class Discovery:
    """Finds the path of a kind. `features` is the result of the last refresh."""

    def __init__(self, api: KubeClient) -> None:
        self._api = api
        self.features = Features()

    async def refresh(self) -> Features:
        """Repeats the discovery. Raises ApiError, and then keeps the former result."""
        version = await self._api.get("/version")
        served = {group["name"]: group["versions"] for group in (await self._api.get("/apis"))["groups"]}
        paths = {"v1": "/api/v1"}
        for group in _GROUPS:
            paths |= {entry["groupVersion"]: f"/apis/{entry['groupVersion']}" for entry in served.get(group, ())}
        resources: dict[tuple[str, str], Resource] = {}
        for api_version, path in paths.items():
            resources |= _resources(api_version, await self._listed(path))
        self.features = Features((_number(version["major"]), _number(version["minor"])), resources)
        return self.features

    async def try_refresh(self) -> bool:
        """Repeats the discovery. Returns whether the server answered."""
        try:
            await self.refresh()
        except ApiError as error:
            log.warning("cannot discover the kinds of the API server: %s", error)
            return False
        return True

    async def _listed(self, path: str) -> Any:
        try:
            return await self._api.get(path)
        except ApiError as error:
            if error.status != 404:
                raise
            return {}  # the group was removed between the two requests

    async def resource(self, api_version: str, kind: str) -> Resource:
        """Returns the path of a kind. Refreshes if the kind is unknown. Raises KindMissing, or ApiError."""
        known = self.features.resources.get((api_version, kind))
        if known is None:
            known = (await self.refresh()).resources.get((api_version, kind))
        if known is None:
            raise KindMissing(f"the API server has no {kind} in {api_version}")
        return known


def _resources(api_version: str, listed: Any) -> dict[tuple[str, str], Resource]:
    """The resources of one group and version, without subresources."""
    return {
        (api_version, entry["kind"]): Resource(api_version, entry["kind"], entry["name"])
        for entry in listed.get("resources", ())
        if "/" not in entry["name"]
    }


def _number(text: str) -> int:
    """The number in a version such as `20+`."""
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else 0
