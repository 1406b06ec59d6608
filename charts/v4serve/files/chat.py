"""Chats with a V4Deployment until a cache went from a prefill to a decode worker. `helm test` runs it in a pod.

Knows the API server, the conditions of a V4Deployment and the OpenAI interface. Makes and deletes the V4Deployment, or
uses one that exists. Needs Python's standard library only. Exit code 0: a transfer was seen, 1: not, and why.
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
_REMOVE_SECONDS = 20.0  # within the pod's time to stop
_WORDS = ("sea", "ship", "storm", "coast", "captain", "letter", "candle", "garden", "sister", "winter", "door", "dog")
_POOL = {"resources": {"requests": {"cpu": "250m", "memory": "1Gi"}}}
_PROMPT_WORDS = 400  # more than a block of 256 tokens


class ChatFailed(Exception):
    """The test cannot pass; the message says why."""


class NotYet(Exception):
    """What is waited for has not happened; the message says what is instead."""


@dataclass(frozen=True)
class Task:
    """What to test."""

    namespace: str
    name: str  # of the V4Deployment
    make: bool  # it does not exist: make it, and delete it at the end
    pod_name: str  # this pod owns what it makes, so that nothing outlives it
    pod_uid: str
    timeout_seconds: float
    poll_seconds: float = 2.0

    @property
    def path(self) -> str:
        """Of the V4Deployment at the API server."""
        return f"{_API}/namespaces/{self.namespace}/v4deployments/{self.name}"


@dataclass(frozen=True)
class Api:
    """The API server."""

    url: str
    token_file: Path  # read for each request: the kubelet replaces the token
    context: ssl.SSLContext | None = None  # None = plain HTTP

    def call(self, method: str, path: str, body: Json | None = None) -> Json:
        """One request. Raises as `request`."""
        token = self.token_file.read_text(encoding="ascii").strip()
        return request(method, self.url + path, body, {"authorization": f"Bearer {token}"}, self.context)


def main(environment: Mapping[str, str]) -> int:
    """Run the test that the pod's environment describes; the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("FAILED: stopped before the end"))
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
    """The API server, as the pod's service account."""
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]
    context = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
    return Api(f"https://{f'[{host}]' if ':' in host else host}:{port}", _ACCOUNT / "token", context)


def run(api: Api, task: Task) -> None:
    """The whole test. Raises ChatFailed."""
    deadline = time.monotonic() + task.timeout_seconds
    if not task.make:
        _chat(api, task, deadline)
        return
    until(lambda: _make(api, task), deadline, task.poll_seconds)
    _say(f"made V4Deployment {task.name}")
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
    """Create the V4Deployment. Raises NotYet while an earlier test's is being deleted."""
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
    """Raises ChatFailed if the V4Deployment in the way was made by someone else, NotYet if by an earlier test."""
    try:
        owners = api.call("GET", task.path)["metadata"].get("ownerReferences", [])
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.NOT_FOUND:
            raise
    else:
        if not any(owner["kind"] == "Pod" and owner["name"] == task.pod_name for owner in owners):
            raise ChatFailed(
                f"V4Deployment {task.name} in namespace {task.namespace} exists and was not made by this test; "
                f"delete it, or test it by the chart's value tests.target={task.name}"
            )
    raise NotYet(f"V4Deployment {task.name} of an earlier test is being deleted")


def _delete(api: Api, task: Task) -> None:
    """Delete the V4Deployment; its children go with it."""
    try:
        api.call("DELETE", task.path)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.NOT_FOUND:
            raise


def _endpoint(api: Api, task: Task, said: list[str]) -> str:
    """The OpenAI interface's address, once the newest spec is served. Raises NotYet; says what changed since `said`."""
    found = api.call("GET", task.path)
    status = found.get("status", {})
    conditions = {one["type"]: one for one in status.get("conditions", [])}
    state = "; ".join(f"{kind}={one['status']} {one['reason']}: {one['message']}" for kind, one in conditions.items())
    state = state or "no condition yet: does an operator run that watches this namespace?"
    if said[-1:] != [state]:
        said.append(state)
        _say(state)
    is_current = status.get("observedGeneration") == found["metadata"]["generation"]
    if not is_current or conditions.get("Ready", {}).get("status") != "True":
        raise NotYet(f"V4Deployment {task.name} is not ready: {state}")
    return str(status["endpoint"])


def _transfer(api: Api, task: Task, endpoint: str) -> str:
    """Chat once; the transfer that was needed for it. Raises NotYet if there was none."""
    headers = {"x-v4serve-timing": "1", **_key(api, task)}
    model = request("GET", f"{endpoint}/models", None, headers)["data"][0]["id"]
    prompt = " ".join(random.choices(_WORDS, k=_PROMPT_WORDS))  # at random: no worker has seen it
    body = {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": prompt}]}
    answer = request("POST", f"{endpoint}/chat/completions", body, headers)
    if not answer["usage"]["completion_tokens"]:
        raise ChatFailed(f"the answer holds no token: {json.dumps(answer)}")
    way = answer["v4serve"]["ways"][0]
    moved = way["transfer"]
    if not moved or not moved["bytes"]:
        raise NotYet(f"nothing was transferred for a chat, reason {way['reason']}")
    return f"{moved['bytes']} bytes went from prefill {way['prefill']} to decode {way['decode']} for one chat"


def _key(api: Api, task: Task) -> dict[str, str]:
    """The header that shows an API key; nothing where none is asked for. Raises ChatFailed."""
    router = api.call("GET", task.path)["spec"].get("router", {})
    if router.get("auth") == "none":
        return {}
    if router.get("apiKeysSecret"):
        raise ChatFailed(f"V4Deployment {task.name} has API keys of its own, which this test may not read")
    secret = api.call("GET", f"/api/v1/namespaces/{task.namespace}/secrets/{task.name}-api-key")
    return {"authorization": f"Bearer {base64.b64decode(secret['data']['key']).decode('ascii').strip()}"}


def until(ask: Callable[[], Found], deadline: float, poll_seconds: float) -> Found:
    """What `ask` returns, asked again while it raises NotYet or a server is not there for a moment.

    Raises ChatFailed at the deadline, a time.monotonic(), and when a server refuses.
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
            raise ChatFailed(f"out of time, tests.timeoutSeconds of the chart; at last: {why}")
        time.sleep(poll_seconds)


def request(
    method: str, url: str, body: Json | None, headers: Mapping[str, str], context: ssl.SSLContext | None = None
) -> Json:
    """One HTTP request with JSON both ways.

    Raises urllib.error.HTTPError for a status that is no success, OSError or HTTPException without a whole answer.
    """
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"content-type": "application/json", **headers}, method=method)
    # Proxies of the environment are for the way out of the cluster.
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    with urllib.request.build_opener(*handlers).open(asked, timeout=_REQUEST_SECONDS) as answer:
        found: Json = json.load(answer)
        return found


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(os.environ))
