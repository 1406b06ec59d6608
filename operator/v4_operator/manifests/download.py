"""The claim for a model from Hugging Face and the Job that downloads the model into it. Pure.

A claim that the operator creates has no owner and is never deleted, because a download takes hours. Its name is derived
from repository and revision, so the V4Deployments of a namespace share it. The Job resumes an interrupted download.
The pod template of a Job is immutable, so an unfinished Job is replaced when its desired template changes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from v4_core.kubernetes import MANAGED_BY_LABEL, MANAGER, ROLE_LABEL, Json
from v4_operator.manifests.model_source import MODEL_DIR, VOLUME, claim_of, folder_of
from v4_operator.manifests.names import CREATE_ONLY, DOWNLOAD, child, metadata, short_digest
from v4_operator.manifests.pods import Container, Pod, container, requirements, template
from v4_operator.manifests.settings import Settings
from v4_operator.observed.compare import was_applied
from v4_operator.observed.live import Live
from v4_operator.observed.objects import condition, holds, label
from v4_operator.spec.v4deployment import HuggingFace, V4Deployment

_RETRIES = 5
_REQUESTS = {"cpu": "250m", "memory": "1Gi"}
# A new volume belongs to root, so the pod needs an fsGroup. A platform with this kind (OpenShift) assigns the group
# itself and rejects pods that name one.
ASSIGNS_GROUPS = ("security.openshift.io/v1", "SecurityContextConstraints")
_GROUP = 65532


@dataclass(frozen=True)
class Download:
    """The state of the download."""

    job: str = ""  # name of the Job; empty = nothing has to be downloaded
    done: bool = True
    failure: str = ""  # message of the Job's condition Failed; empty = the Job has not failed
    error: str = ""  # termination message of the last failed attempt


def download(v4d: V4Deployment, live: Live) -> Download:
    """The state of the V4Deployment's download."""
    fetched = v4d.spec.model.hugging_face
    if fetched is None:
        return Download()
    name = job_name(v4d, fetched)
    job = live.find("Job", name)
    if job is None:
        return Download(name, done=False)
    failure = condition(job, "Failed").get("message", "it failed") if holds(job, "Failed") else ""
    return Download(name, holds(job, "Complete"), failure, _last_error(live))


def _last_error(live: Live) -> str:
    """The termination message of the newest failed pod."""
    pods = [pod for pod in live.of("Pod") if label(pod, ROLE_LABEL) == DOWNLOAD]
    failed = [pod for pod in pods if pod.get("status", {}).get("phase") == "Failed"]
    newest = max(failed, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), default={})
    status = newest.get("status", {})
    for each in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        ended = (each.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):  # injected containers may have ended without an error
            return str(ended.get("message") or ended.get("reason") or "")
    return ""


def job_name(v4d: V4Deployment, fetched: HuggingFace) -> str:
    """Name of the Job; it contains a hash of the source and of the claim."""
    return child(v4d, "fetch", short_digest([fetched.repository, fetched.revision, claim_of(fetched)]))


def outdated_jobs(desired: Iterable[Json], live: Live) -> list[Json]:
    """Live Jobs that are not complete and differ from the desired Job of the same name."""
    jobs = ((obj, live.find("Job", obj["metadata"]["name"])) for obj in desired if obj["kind"] == "Job")
    return [job for obj, job in jobs if job and not holds(job, "Complete") and not was_applied(obj, job)]


def download_objects(v4d: V4Deployment, settings: Settings, image: str) -> list[dict[str, Any]]:
    """The claim and the Job for a model from Hugging Face; an empty list for other sources."""
    fetched = v4d.spec.model.hugging_face
    if fetched is None:
        return []
    job = _job(v4d, settings, fetched, image)
    return [job] if fetched.claim else [_claim(v4d, settings, fetched), job]


def _claim(v4d: V4Deployment, settings: Settings, fetched: HuggingFace) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "accessModes": [fetched.access_mode],
        "resources": {"requests": {"storage": fetched.size}},
    }
    if fetched.storage_class:
        spec["storageClassName"] = fetched.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": claim_of(fetched),
            "namespace": v4d.namespace,
            # No labels of one V4Deployment, because others may share the claim.
            "labels": {**settings.common_labels, "app.kubernetes.io/name": "v4serve", MANAGED_BY_LABEL: MANAGER},
            "annotations": CREATE_ONLY,
        },
        "spec": spec,
    }


def _job(v4d: V4Deployment, settings: Settings, fetched: HuggingFace, image: str) -> dict[str, Any]:
    """The Job. It uses the overrides of prefill pods, which have proxies, mirrors and tolerations that it needs too."""
    made = container(settings, _fetch(fetched, image), v4d.spec.prefill.pod)
    claim = {"name": VOLUME, "persistentVolumeClaim": {"claimName": claim_of(fetched)}}
    pod = Pod(DOWNLOAD, [made], [claim], child(v4d, "worker"), more={"restartPolicy": "Never"})
    pod_template = template(v4d, settings, pod, v4d.spec.prefill.pod)
    if ASSIGNS_GROUPS not in settings.kinds:
        group: Json = {"fsGroup": _GROUP, "fsGroupChangePolicy": "OnRootMismatch"}
        pod_template["spec"]["securityContext"] |= group
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(v4d, settings, job_name(v4d, fetched), DOWNLOAD, annotations=CREATE_ONLY),
        "spec": {"backoffLimit": _RETRIES, "template": pod_template},
    }


def _fetch(fetched: HuggingFace, image: str) -> Container:
    into = f"{MODEL_DIR}/{folder_of(fetched)}"
    return Container(
        name="fetch",
        image=image,
        args=["fetch", "--repository", fetched.repository, "--revision", fetched.revision, "--into", into],
        resources=requirements({}, _REQUESTS),
        env={"HOME": "/tmp", "HF_HOME": f"{MODEL_DIR}/.huggingface"},
        secret_env={"HF_TOKEN": (fetched.token_secret, "token")} if fetched.token_secret else {},
        mounts=[{"name": VOLUME, "mountPath": MODEL_DIR}],
    )
