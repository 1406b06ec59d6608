"""Names of Services, as a cluster's DNS answers them: dnsmasq over a file of hosts that follows the API server."""

import http.client
import signal
import threading
from collections.abc import Iterator
from typing import Any

from tests.cluster.machine.api import Api
from tests.cluster.machine.layout import CLUSTER_DOMAIN, NODE_ADDRESS
from tests.cluster.machine.sandbox import Sandbox

_POLL_SECONDS = 0.5


def hosts(services: list[dict[str, Any]], endpoints: list[dict[str, Any]]) -> str:
    """A hosts file: every Service by its address, a headless one by the addresses of its ready pods."""
    behind = {_key(item): list(_addresses(item)) for item in endpoints}
    lines: list[str] = []
    for service in services:
        name = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc.{CLUSTER_DOMAIN}"
        address = service["spec"].get("clusterIP", "None")
        if address != "None":
            lines.append(f"{address} {name}")
            continue
        for pod_address, hostname in behind.get(_key(service), []):
            lines.append(f"{pod_address} {name}")
            lines += [f"{pod_address} {hostname}.{name}"] if hostname else []
    return "".join(f"{line}\n" for line in sorted(lines))


def _key(item: dict[str, Any]) -> tuple[str, str]:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def _addresses(item: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for subset in item.get("subsets") or []:
        for address in subset.get("addresses") or []:
            yield address["ip"], address.get("hostname", "")


class NameServer:
    """dnsmasq on the node's address, and the thread that feeds it: new Services are known within a second."""

    def __init__(self, sandbox: Sandbox, api: Api) -> None:
        """`api` is used by the thread alone from now on."""
        self._api = api
        self._file = sandbox.folder / "hosts"
        self._file.touch()
        # All names are below the cluster's domain or do not exist: there is no server to ask further.
        command = [
            "dnsmasq",
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--no-resolv",
            "--no-hosts",
            "--user=root",
        ]
        command += ["--pid-file=", "--addn-hosts=/run/hosts", "--address=/#/", "--bind-interfaces"]
        self._daemon = sandbox.spawn("dnsmasq", *command, f"--listen-address={NODE_ADDRESS}")
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="nameserver")
        self._thread.start()

    def _follow(self) -> None:
        while not self._end.wait(_POLL_SECONDS):
            try:
                services, endpoints = self._api.get("/api/v1/services"), self._api.get("/api/v1/endpoints")
            except (OSError, http.client.HTTPException):
                continue  # tests stop the API server; what is known goes on to be answered
            if services and endpoints:
                self._publish(hosts(services["items"], endpoints["items"]))

    def _publish(self, content: str) -> None:
        if content != self._file.read_text():
            self._file.write_text(content)
            self._daemon.signal(signal.SIGHUP)

    def close(self) -> None:
        """End the thread; dnsmasq ends with the sandbox."""
        self._end.set()
        self._thread.join()
        self._api.close()
