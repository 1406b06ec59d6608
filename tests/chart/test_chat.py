"""The script of `helm test`, against a server that plays the API server and the router of a V4Deployment."""

import base64
import importlib.util
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.chart.helm import CHART
from v4_operator.spec.parse import parse

SCRIPT = CHART / "files" / "chat.py"
DEPLOYMENT = "/apis/v4serve.dev/v1alpha1/namespaces/team/v4deployments/test-v4serve"
SECRET = "/api/v1/namespaces/team/secrets/test-v4serve-api-key"
READY = {"type": "Ready", "status": "True", "reason": "Serving", "message": "all is well"}
STARTING = {"type": "Ready", "status": "False", "reason": "Starting", "message": "no worker is ready"}
MOVED = {"bytes": 4096, "seconds": 0.01}

Answer = tuple[int, Any]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chat", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["chat"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


chat = _load()


class Cluster:
    """A V4Deployment that becomes ready and moves caches as its fields say; `seen` are the requests, in order."""

    def __init__(self, tmp_path: Path) -> None:
        self.seen: list[str] = []
        self.live: dict[str, Any] | None = None
        self.conditions = [[], [STARTING], [READY]]  # at each look; the last one stays
        self.transfers: list[Any] = [MOVED]  # of each chat; the last one stays
        self.overrides: dict[str, Callable[[], Answer | None]] = {}  # by method and path; None = as usual
        self.prompts: list[str] = []
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def _handle(self) -> None:
                length = int(self.headers.get("content-length", 0))
                body = json.loads(self.rfile.read(length)) if length else None
                status, answer = cluster.answer(f"{self.command} {self.path}", body, dict(self.headers.items()))
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = _handle

            def log_message(self, *_: object) -> None:
                """Nothing: `seen` has it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        token = tmp_path / "token"
        token.write_text("account\n")
        self.api = chat.Api(self.url, token)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, what: str, body: Any, headers: dict[str, str]) -> Answer:
        self.seen.append(what)
        if (override := self.overrides.get(what)) and (answer := override()):
            return answer
        key = {name.lower(): value for name, value in headers.items()}.get("authorization")
        if what.partition(" ")[2].startswith("/v1/"):
            return self._route(what, body, key)
        assert key == "Bearer account"
        if what == f"GET {SECRET}":
            return 200, {"data": {"key": base64.b64encode(b"v4-secret").decode()}}
        if what == f"POST {DEPLOYMENT.rpartition('/')[0]}":
            self.live = {**body, "metadata": {**body["metadata"], "generation": 1}}
            return 201, self.live
        if self.live is None:
            return 404, {"message": "no such V4Deployment"}
        if what == f"DELETE {DEPLOYMENT}":
            self.live = None
            return 200, {}
        assert what == f"GET {DEPLOYMENT}"
        conditions = self.conditions.pop(0) if len(self.conditions) > 1 else self.conditions[0]
        status = {"observedGeneration": 1, "conditions": conditions, "endpoint": f"{self.url}/v1"}
        return 200, {**self.live, "status": status}

    def _route(self, what: str, body: Any, key: str | None) -> Answer:
        if key != "Bearer v4-secret":
            return 401, {"error": {"message": "wrong key"}}
        if what == "GET /v1/models":
            return 200, {"data": [{"id": "tiny"}]}
        assert what == "POST /v1/chat/completions"
        assert body["model"] == "tiny"
        self.prompts.append(body["messages"][0]["content"])
        moved = self.transfers.pop(0) if len(self.transfers) > 1 else self.transfers[0]
        way = {"prefill": "10.0.0.1:5101", "decode": "10.0.0.2:5102", "reason": "pair", "transfer": moved}
        return 200, {"usage": {"completion_tokens": 8}, "v4serve": {"ways": [way]}}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def _task(*, make: bool = True, timeout_seconds: float = 60.0) -> Any:
    return chat.Task("team", "test-v4serve", make, "test-v4serve", "uid-1", timeout_seconds, poll_seconds=0.01)


def test_makes_a_deployment_chats_until_a_transfer_and_deletes_it(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.transfers = [None, {"bytes": 0, "seconds": 0.0}, MOVED]
    chat.run(cluster.api, _task())
    assert cluster.live is None
    assert cluster.seen[-1] == f"DELETE {DEPLOYMENT}"
    assert len(set(cluster.prompts)) == len(cluster.prompts) == 3
    said = capsys.readouterr().out.splitlines()
    assert said[1:3] == [
        "no conditions yet: check that an operator is running and watches this namespace",
        "Ready=False Starting: no worker is ready",
    ]
    assert said[-2:] == [
        "PASSED: 4096 bytes were transferred from prefill 10.0.0.1:5101 to decode 10.0.0.2:5102 for one chat",
        "deleted V4Deployment test-v4serve",
    ]


def test_what_it_makes_is_the_demo_and_belongs_to_its_pod(cluster: Cluster) -> None:
    made: list[Any] = []
    cluster.overrides[f"DELETE {DEPLOYMENT}"] = lambda: made.append(cluster.live)
    chat.run(cluster.api, _task())
    demo = yaml.safe_load((CHART.parents[1] / "examples" / "demo.yaml").read_text())
    assert made[0]["spec"] == demo["spec"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "test-v4serve", "uid": "uid-1"}
    assert made[0]["metadata"]["ownerReferences"] == [owner]
    named = {"namespace": "team", "uid": "u", **made[0]["metadata"]}
    assert parse({**made[0], "metadata": named}).spec.model.source == "demo"


def test_a_deployment_that_exists_is_left_as_it_is(cluster: Cluster) -> None:
    cluster.live = {"metadata": {"generation": 1}, "spec": {}}
    chat.run(cluster.api, _task(make=False))
    assert cluster.live is not None
    assert not any(what.startswith(("DELETE", f"POST {DEPLOYMENT[:5]}")) for what in cluster.seen)


def test_ready_of_an_older_spec_does_not_count(cluster: Cluster) -> None:
    cluster.live = {"metadata": {"generation": 2}, "spec": {}}
    cluster.conditions = [[READY]]
    with pytest.raises(chat.ChatFailed, match="is not ready"):
        chat.run(cluster.api, _task(make=False, timeout_seconds=0.1))


def test_without_keys_none_is_shown(cluster: Cluster) -> None:
    cluster.live = {"metadata": {"generation": 1}, "spec": {"router": {"auth": "none"}}}
    with pytest.raises(chat.ChatFailed, match="/v1/models answered 401"):  # the server of this test asks for one
        chat.run(cluster.api, _task(make=False))
    assert f"GET {SECRET}" not in cluster.seen


def test_keys_of_the_users_own_are_out_of_reach(cluster: Cluster) -> None:
    cluster.live = {"metadata": {"generation": 1}, "spec": {"router": {"apiKeysSecret": "ours"}}}
    with pytest.raises(chat.ChatFailed, match=r"uses the Secret of spec.router.apiKeysSecret"):
        chat.run(cluster.api, _task(make=False))


def test_never_ready_says_why_and_cleans_up(cluster: Cluster) -> None:
    cluster.conditions = [[STARTING]]
    with pytest.raises(chat.ChatFailed, match=r"timed out .*Ready=False Starting: no worker is ready"):
        chat.run(cluster.api, _task(timeout_seconds=0.1))
    assert cluster.live is None


def test_never_a_transfer_says_so_and_cleans_up(cluster: Cluster) -> None:
    cluster.transfers = [None]
    with pytest.raises(chat.ChatFailed, match=r"no cache was transferred for a chat \(placement reason: pair\)"):
        chat.run(cluster.api, _task(timeout_seconds=0.2))
    assert cluster.live is None


def test_an_answer_without_a_token_fails(cluster: Cluster) -> None:
    cluster.overrides["POST /v1/chat/completions"] = lambda: (200, {"usage": {"completion_tokens": 0}})
    with pytest.raises(chat.ChatFailed, match="contains no tokens"):
        chat.run(cluster.api, _task())
    assert cluster.live is None


def test_servers_that_are_away_for_a_moment_are_asked_again(cluster: Cluster) -> None:
    trouble = iter([(503, {"error": "starting"}), (429, {"error": "busy"}), (500, {"error": "oops"})])
    cluster.overrides["POST /v1/chat/completions"] = lambda: next(trouble, None)
    chat.run(cluster.api, _task())
    assert cluster.seen.count("POST /v1/chat/completions") == 4


def test_a_refusal_ends_the_test_at_once(cluster: Cluster) -> None:
    cluster.overrides[f"POST {DEPLOYMENT.rpartition('/')[0]}"] = lambda: (403, {"message": "forbidden: no right"})
    with pytest.raises(chat.ChatFailed, match=r"answered 403.*no right"):
        chat.run(cluster.api, _task())
    assert cluster.seen == [f"POST {DEPLOYMENT.rpartition('/')[0]}"]


def test_nothing_listens(cluster: Cluster) -> None:
    api = chat.Api("http://127.0.0.1:9", cluster.api.token_file)  # a port that nobody may have
    with pytest.raises(chat.ChatFailed, match="no answer"):
        chat.run(api, _task(make=False, timeout_seconds=0.1))


@pytest.mark.parametrize("owner", ["test-v4serve", None])
def test_only_a_leftover_of_an_earlier_test_is_waited_for(cluster: Cluster, owner: str | None) -> None:
    owners = [{"kind": "Pod", "name": owner, "uid": "uid-0"}] if owner else []
    cluster.live = {"metadata": {"generation": 1, "ownerReferences": owners}, "spec": {}}
    conflicts = iter([(409, {"message": "exists"})] * 3)
    cluster.overrides[f"POST {DEPLOYMENT.rpartition('/')[0]}"] = lambda: next(conflicts, None)
    if owner:
        chat.run(cluster.api, _task())
        assert cluster.live is None
        return
    with pytest.raises(chat.ChatFailed, match="was not created by this test"):
        chat.run(cluster.api, _task())
    assert cluster.live is not None


def test_a_leftover_that_just_went_is_no_obstacle(cluster: Cluster) -> None:
    conflicts = iter([(409, {"message": "exists"})])
    cluster.overrides[f"POST {DEPLOYMENT.rpartition('/')[0]}"] = lambda: next(conflicts, None)
    chat.run(cluster.api, _task())
    assert cluster.live is None


def test_a_pod_that_is_stopped_deletes_what_it_made(cluster: Cluster) -> None:
    cluster.conditions = [[STARTING]]
    with _process(cluster) as process:
        said = process.stdout
        assert said is not None
        assert any("Starting" in line for line in iter(said.readline, ""))
        process.send_signal(signal.SIGTERM)
        assert "deleted V4Deployment test-v4serve" in said.read()
    assert process.returncode == 1
    assert cluster.live is None


@pytest.mark.parametrize(("transfer", "code", "end"), [(MOVED, 0, "PASSED: "), (None, 1, "FAILED: timed out")])
def test_the_exit_code_says_how_it_went(cluster: Cluster, transfer: Any, code: int, end: str) -> None:
    cluster.conditions, cluster.transfers = [[READY]], [transfer]
    with _process(cluster) as process:
        assert process.stdout is not None
        assert end in process.stdout.read()
    assert process.returncode == code


def _process(cluster: Cluster) -> "subprocess.Popen[str]":
    """The script as a pod runs it, but for where it finds the API server."""
    environment = {
        "NAMESPACE": "team",
        "DEPLOYMENT": "test-v4serve",
        "MAKE": "true",
        "POD_NAME": "test-v4serve",
        "POD_UID": "uid-1",
        "TIMEOUT_SECONDS": "0" if cluster.transfers == [None] else "60",
    }
    code = f"""
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("chat", {str(SCRIPT)!r})
chat = sys.modules["chat"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(chat)
chat.connect = lambda _: chat.Api({cluster.url!r}, pathlib.Path({str(cluster.api.token_file)!r}))
sys.exit(chat.main({environment!r}))
"""
    return subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, text=True)
