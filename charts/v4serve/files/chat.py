"""Chats with a V4Deployment until a cache is transferred from a prefill to a decode worker (`helm test`).

Uses the Kubernetes API, the conditions of the V4Deployment and the OpenAI API. Creates and deletes the V4Deployment, or
uses an existing one. Needs only Python's standard library. Exits with 0 after a transfer; otherwise prints the reason
and exits with 1.
"""

import base64
import http.client
import json
import os
import random
import signal
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Json = dict[str, Any]
Found = TypeVar("Found")

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_API = "/apis/v4serve.dev/v1alpha1"
_REQUEST_SECONDS = 60.0
_REMOVE_SECONDS = 20.0  # shorter than the pod's termination grace period
_WORDS = ("sea", "ship", "storm", "coast", "captain", "letter", "candle", "garden", "sister", "winter", "door", "dog")
_POOL = {"resources": {"requests": {"cpu": "250m", "memory": "1Gi"}}}
_PROMPT_WORDS = 400  # longer than one block of 256 tokens


class ChatFailed(Exception):
    """The test cannot pass; the message says why."""


class NotYet(Exception):
    """The awaited state has not been reached; the message describes the current state."""


@dataclass(frozen=True)
class Task:
    """The V4Deployment to test, and how."""

    namespace: str
    name: str  # of the V4Deployment
    make: bool  # create the V4Deployment and delete it at the end; otherwise it must exist
    pod_name: str  # this pod owns the V4Deployment that it creates, which is therefore deleted with the pod
    pod_uid: str
    timeout_seconds: float
    poll_seconds: float = 2.0

    @property
    def path(self) -> str:
        """The URL path of the V4Deployment at the API server."""
        return f"{_API}/namespaces/{self.namespace}/v4deployments/{self.name}"


@dataclass(frozen=True)
class Api:
    """The API server."""

    url: str
    token_file: Path  # read for each request, since the kubelet renews the token
    context: ssl.SSLContext | None = None  # None for plain HTTP

    def call(self, method: str, path: str, body: Json | None = None) -> Json:
        """Send one request. Raises the errors of `request`."""
        token = self.token_file.read_text(encoding="ascii").strip()
        return request(method, self.url + path, body, {"authorization": f"Bearer {token}"}, self.context)


def main(environment: Mapping[str, str]) -> int:
    """Run the test that the pod's environment describes and return the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("FAILED: the test was terminated before it finished"))
    task = Task(
        namespace=environment["NAMESPACE"],
        name=environment["DEPLOYMENT"],
        make=environment["MAKE"] == "true",
        pod_name=environment["POD_NAME"],
        pod_uid=environment["POD_UID"],
        timeout_seconds=float(environment["TIMEOUT_SECONDS"]),
    )
    try:
        run(connect(environment), task)
    except ChatFailed as error:
        _say(f"FAILED: {error}")
        return 1
    return 0


def connect(environment: Mapping[str, str]) -> Api:
    """Return the API server, accessed with the pod's service account."""
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]
    context = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
    return Api(f"https://{f'[{host}]' if ':' in host else host}:{port}", _ACCOUNT / "token", context)


def run(api: Api, task: Task) -> None:
    """Run the test. Raises ChatFailed."""
    deadline = time.monotonic() + task.timeout_seconds
    if not task.make:
        _chat(api, task, deadline)
        return
    until(lambda: _make(api, task), deadline, task.poll_seconds)
    _say(f"created V4Deployment {task.name}")
    try:
        _chat(api, task, deadline)
    finally:
        until(lambda: _delete(api, task), time.monotonic() + _REMOVE_SECONDS, task.poll_seconds)
        _say(f"deleted V4Deployment {task.name}")


def _chat(api: Api, task: Task, deadline: float) -> None:
    said: list[str] = []
    endpoint = until(lambda: _endpoint(api, task, said), deadline, task.poll_seconds)
    _say("PASSED: " + until(lambda: _transfer(api, task, endpoint), deadline, task.poll_seconds))


def _make(api: Api, task: Task) -> None:
    """Create the V4Deployment. Raises NotYet while that of an earlier test is being deleted."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": task.pod_name, "uid": task.pod_uid}
    manifest = {
        "apiVersion": "v4serve.dev/v1alpha1",
        "kind": "V4Deployment",
        "metadata": {"name": task.name, "ownerReferences": [owner]},
        "spec": {"model": {"demo": {}}, "prefill": _POOL, "decode": _POOL},
    }
    try:
        api.call("POST", task.path.rpartition("/")[0], manifest)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.CONFLICT:
            raise
        _check_leftover(api, task)


def _check_leftover(api: Api, task: Task) -> None:
    """Raises ChatFailed if this test's pods did not create the V4Deployment of this name, NotYet otherwise."""
    try:
        owners = api.call("GET", task.path)["metadata"].get("ownerReferences", [])
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.NOT_FOUND:
            raise
    else:
        if not any(owner["kind"] == "Pod" and owner["name"] == task.pod_name for owner in owners):
            raise ChatFailed(
                f"V4Deployment {task.name} in namespace {task.namespace} exists and was not created by this test; "
                f"delete it, or test it by setting the chart's value tests.target={task.name}"
            )
    raise NotYet(f"V4Deployment {task.name} of an earlier test is being deleted")


def _delete(api: Api, task: Task) -> None:
    """Delete the V4Deployment, and thereby the objects that it owns."""
    try:
        api.call("DELETE", task.path)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.NOT_FOUND:
            raise


def _endpoint(api: Api, task: Task, said: list[str]) -> str:
    """Return the URL of the OpenAI API and print changed conditions. Raises NotYet until the newest spec is served."""
    found = api.call("GET", task.path)
    status = found.get("status", {})
    conditions = {one["type"]: one for one in status.get("conditions", [])}
    state = "; ".join(f"{kind}={one['status']} {one['reason']}: {one['message']}" for kind, one in conditions.items())
    state = state or "no conditions yet: check that an operator is running and watches this namespace"
    if said[-1:] != [state]:
        said.append(state)
        _say(state)
    is_current = status.get("observedGeneration") == found["metadata"]["generation"]
    if not is_current or conditions.get("Ready", {}).get("status") != "True":
        raise NotYet(f"V4Deployment {task.name} is not ready: {state}")
    return str(status["endpoint"])


def _transfer(api: Api, task: Task, endpoint: str) -> str:
    """Chat once and describe the transfer. Raises NotYet if nothing was transferred."""
    headers = {"x-v4serve-timing": "1", **_key(api, task)}
    model = request("GET", f"{endpoint}/models", None, headers)["data"][0]["id"]
    prompt = " ".join(random.choices(_WORDS, k=_PROMPT_WORDS))  # random, so that no worker has it cached
    body = {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": prompt}]}
    answer = request("POST", f"{endpoint}/chat/completions", body, headers)
    if not answer["usage"]["completion_tokens"]:
        raise ChatFailed(f"the answer contains no tokens: {json.dumps(answer)}")
    way = answer["v4serve"]["ways"][0]
    moved = way["transfer"]
    if not moved or not moved["bytes"]:
        raise NotYet(f"no cache was transferred for a chat (placement reason: {way['reason']})")
    return (
        f"{moved['bytes']} bytes were transferred from prefill {way['prefill']} to decode {way['decode']} for one chat"
    )


def _key(api: Api, task: Task) -> dict[str, str]:
    """Return the header with the API key, or no header if none is required. Raises ChatFailed if it cannot be read."""
    router = api.call("GET", task.path)["spec"].get("router", {})
    if router.get("auth") == "none":
        return {}
    if router.get("apiKeysSecret"):
        raise ChatFailed(
            f"V4Deployment {task.name} uses the Secret of spec.router.apiKeysSecret, which this test may not read"
        )
    secret = api.call("GET", f"/api/v1/namespaces/{task.namespace}/secrets/{task.name}-api-key")
    return {"authorization": f"Bearer {base64.b64decode(secret['data']['key']).decode('ascii').strip()}"}


def until(ask: Callable[[], Found], deadline: float, poll_seconds: float) -> Found:
    """Call `ask` until it returns, and return its result. Retries after NotYet and temporary errors of a server.

    Raises ChatFailed at the deadline, a value of time.monotonic(), and if a server rejects a request.
    """
    while True:
        try:
            return ask()
        except NotYet as error:
            why = str(error)
        except urllib.error.HTTPError as error:
            why = f"{error.url} answered {error.code}: {error.read().decode(errors='replace')}"
            if error.code < 500 and error.code != http.HTTPStatus.TOO_MANY_REQUESTS:
                raise ChatFailed(why) from error
        except (OSError, http.client.HTTPException) as error:
            why = f"no answer: {error}"
        if time.monotonic() > deadline:
            raise ChatFailed(
                f"timed out (raise the chart's value tests.timeoutSeconds to wait longer); last state: {why}"
            )
        time.sleep(poll_seconds)


def request(
    method: str, url: str, body: Json | None, headers: Mapping[str, str], context: ssl.SSLContext | None = None
) -> Json:
    """Send one HTTP request with a JSON body and return the JSON answer.

    Raises urllib.error.HTTPError for an error status, and OSError or HTTPException if no complete answer arrives.
    """
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"content-type": "application/json", **headers}, method=method)
    # Proxies configured in the environment are for connections that leave the cluster.
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    with urllib.request.build_opener(*handlers).open(asked, timeout=_REQUEST_SECONDS) as answer:
        found: Json = json.load(answer)
        return found


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(os.environ))
