"""A model from Hugging Face: claim, Job, and workers that wait for it."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.operator.world import SETTINGS, Obj, World, text, v4deployment
from v4_operator.manifests.download import ASSIGNS_GROUPS, download_objects
from v4_operator.manifests.settings import Settings

HUB: Obj = {"model": {"huggingFace": {"repository": "a/b", "tokenSecret": "hub"}}}


def job_of(spec: Obj | None = None, settings: Settings = SETTINGS) -> Obj:
    return download_objects(v4deployment(spec or HUB), settings, "worker:1")[-1]


def deployments(world: World) -> list[str]:
    return [deployment["metadata"]["name"] for deployment in world.of("Deployment")]


def test_other_sources_need_none() -> None:
    assert download_objects(v4deployment(), SETTINGS, "worker:1") == []


def test_the_claim_belongs_to_nobody_and_is_shared() -> None:
    claim = download_objects(v4deployment(HUB), SETTINGS, "worker:1")[0]
    other = download_objects(v4deployment(HUB, name="other"), SETTINGS, "worker:1")[0]
    assert claim == other
    assert "ownerReferences" not in claim["metadata"]
    assert claim["metadata"]["annotations"]["v4serve.dev/create-only"] == "true"
    assert claim["spec"] == {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Ti"}}}


def test_the_users_claim_is_used_as_it_is() -> None:
    spec = {"model": {"huggingFace": {"repository": "a/b", "claim": "mine"}}}
    (job,) = download_objects(v4deployment(spec), SETTINGS, "worker:1")
    assert job["spec"]["template"]["spec"]["volumes"][-1]["persistentVolumeClaim"] == {"claimName": "mine"}


def test_the_job_writes_where_workers_read() -> None:
    pod = job_of()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["fetch", "--repository", "a/b", "--revision", "main", "--into", "/model/a/b/main"]
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    assert token in container["env"]
    assert {"name": "HF_HOME", "value": "/model/.huggingface"} in container["env"]
    assert {"name": "model", "mountPath": "/model"} in container["volumeMounts"]
    assert (pod["restartPolicy"], pod["automountServiceAccountToken"]) == ("Never", False)


def test_the_job_runs_as_workers_do() -> None:
    additions = {"env": [{"name": "HF_ENDPOINT", "value": "http://mirror"}], "nodeSelector": {"a": "b"}}
    pod = job_of({**HUB, "prefill": {"pod": additions}})["spec"]["template"]["spec"]
    assert {"name": "HF_ENDPOINT", "value": "http://mirror"} in pod["containers"][0]["env"]
    assert pod["nodeSelector"] == {"a": "b"}


@pytest.mark.parametrize("openshift", [False, True])
def test_a_new_volume_can_be_written(openshift: bool) -> None:
    kinds = {ASSIGNS_GROUPS} if openshift else set()
    context = job_of(settings=replace(SETTINGS, kinds=frozenset(kinds)))["spec"]["template"]["spec"]["securityContext"]
    assert ("fsGroup" in context) is not openshift


def test_another_source_is_another_job() -> None:
    names = [
        job_of({"model": {"huggingFace": {"repository": "a/b", **more}}})["metadata"]["name"]
        for more in ({}, {"revision": "2"}, {"claim": "mine"}, {"tokenSecret": "other"})
    ]
    assert len(set(names)) == 3
    assert names[0] == names[3], "the same files, whoever asks for them"


CHANGES: list[Obj] = [
    {"image": "worker:2"},
    {"model": {"huggingFace": {"tokenSecret": "other"}}},
    {"prefill": {"pod": {"nodeSelector": {"disk": "fast"}}}},
    {"prefill": {"pod": {"env": [{"name": "HF_ENDPOINT", "value": "http://mirror"}]}}},
]


@pytest.mark.parametrize("failed", ["", "backoff limit"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_job_that_has_not_fetched_the_model_follows_the_spec(change: Obj, failed: str) -> None:
    world = World(HUB)
    world.reconcile()
    (before,) = world.of("Job")
    if failed:
        world.finish_job(failed)
    world.change(change)
    world.reconcile()
    assert world.of("Job") == [], "what a Job runs on cannot be changed"
    world.reconcile()
    (after,) = world.of("Job")
    assert after["spec"] != before["spec"]
    assert world.condition("Progressing")["reason"] == "FetchingModel"
    writes = world.writes
    world.reconcile()
    assert world.writes == writes


@pytest.mark.parametrize("change", CHANGES)
def test_a_job_that_has_fetched_the_model_is_not_run_again(change: Obj) -> None:
    world = World(HUB)
    world.reconcile()
    world.finish_job()
    world.settle()
    (before,) = world.of("Job")
    world.change(change)
    world.settle()
    assert world.of("Job") == [before]


def test_pods_wait_for_the_model() -> None:
    world = World(HUB)
    made = world.reconcile()
    assert deployments(world) == []
    assert world.condition("Progressing")["reason"] == "FetchingModel"
    assert world.condition("Ready")["reason"] == "ModelNotFetched"
    assert made.requeue_seconds == 15, "the Job tells when it is done"
    world.finish_job()
    world.settle()
    assert len(deployments(world)) == 3
    assert world.condition("Ready")["status"] == "True"


def test_a_failure_is_told_with_the_words_of_job_and_pod() -> None:
    world = World(HUB)
    world.reconcile()
    for number, words in enumerate(("first", "401: a token is needed")):
        pod = {**world.of("Job")[0]["spec"]["template"], "kind": "Pod"}
        ended = {"name": "fetch", "state": {"terminated": {"exitCode": 1, "message": words}}}
        created = f"2026-01-01T00:00:0{number}Z"
        metadata = {**pod["metadata"], "name": f"fetch-{number}", "creationTimestamp": created}
        injected = {"name": "proxy", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
        status = {"phase": "Failed", "initContainerStatuses": [injected], "containerStatuses": [injected, ended]}
        world.objects["Pod", f"fetch-{number}"] = {**pod, "metadata": metadata, "status": status}
    world.reconcile()
    assert world.condition("Progressing")["message"].endswith("its last attempt ended with: 401: a token is needed")
    world.finish_job("Job has reached the specified backoff limit")
    world.reconcile()
    degraded = world.condition("Degraded")
    assert degraded["reason"] == "ModelFetchFailed"
    assert "backoff limit" in degraded["message"]
    assert "401: a token is needed" in degraded["message"]
    assert "delete the Job to try again" in degraded["message"]
    assert (world.condition("Progressing")["status"], deployments(world)) == ("False", [])


def test_what_serves_stays_while_another_model_is_fetched() -> None:
    world = World()
    first = world.settle().status["revision"]
    before = {d["metadata"]["name"]: d["spec"]["template"] for d in world.of("Deployment")}
    world.spec.pop("model")
    world.change({**HUB, "decode": {"replicas": 2}})
    world.reconcile()
    world.tick(5)
    world.reconcile()
    assert {d["metadata"]["name"]: d["spec"]["template"] for d in world.of("Deployment")} == before
    assert world.sizes()[f"demo-decode-{first}"] == 2
    assert f"revision {first} serves meanwhile" in world.condition("Ready")["message"]
    world.finish_job()
    assert world.settle().status["revision"] != first
    assert world.revisions() == [world.status["revision"]]


def test_workers_stay_when_the_job_is_removed() -> None:
    world = World(HUB)
    world.reconcile()
    world.finish_job()
    world.settle()
    names = deployments(world)
    del world.objects["Job", world.of("Job")[0]["metadata"]["name"]]
    world.reconcile()
    assert deployments(world) == names
    assert world.condition("Ready")["status"] == "True"
    assert len(world.of("Job")) == 1, "it looks whether all is there"


def test_a_job_that_may_not_have_a_pod_is_told_of() -> None:
    """A quota, or a rule of admission."""
    world = World({"model": {"huggingFace": {"repository": "a/b"}}})
    world.reconcile()
    (job,) = world.of("Job")
    job["status"] = {"startTime": text(world.now)}
    for seconds, reason in ((59, "AsExpected"), (1, "PodsRefused")):
        world.now += timedelta(seconds=seconds)
        world.reconcile()
        assert world.condition("Degraded")["reason"] == reason
    name = job["metadata"]["name"]
    assert world.condition("Degraded")["message"].endswith(f"`kubectl describe job {name}` says why")
    job["status"]["failed"] = 1
    world.reconcile()
    assert world.condition("Degraded")["reason"] == "AsExpected", "it waits before it tries again"
