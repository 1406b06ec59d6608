"""Certificates, keys and kubeconfig files of one cluster, by the openssl command."""

import base64
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.machine.commands import run

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30")

# File name -> subject of a client's certificate.
_CLIENTS = {
    "admin": "/O=system:masters/CN=admin",
    "kube-controller-manager": "/CN=system:kube-controller-manager",
    "kube-scheduler": "/CN=system:kube-scheduler",
    "kube-proxy": "/CN=system:kube-proxy",
    "front-proxy": "/CN=front-proxy",
}


class Authority:
    """A certificate authority and what it has signed, in one folder."""

    def __init__(self, folder: Path, node: str, addresses: list[str]) -> None:
        """Sign for the servers at `addresses`, for the node of that name and for every client. Raises CommandFailed."""
        folder.mkdir()
        self._folder = folder
        run(["openssl", "req", "-x509", *_KEY, "-subj", "/CN=test", "-keyout", "ca.key", "-out", "ca.crt"], cwd=folder)
        names = ["DNS:localhost", "DNS:kubernetes.default.svc", *(f"IP:{address}" for address in addresses)]
        self._sign("server", "/CN=kube-apiserver", ",".join(names))
        for name, subject in {**_CLIENTS, "kubelet": f"/O=system:nodes/CN=system:node:{node}"}.items():
            self._sign(name, subject)
        run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "accounts.key"], cwd=folder)
        run(["openssl", "ec", "-in", "accounts.key", "-pubout", "-out", "accounts.pub"], cwd=folder)

    def _sign(self, name: str, subject: str, alternatives: str = "") -> None:
        command = ["openssl", "req", "-x509", *_KEY, "-CA", "ca.crt", "-CAkey", "ca.key", "-subj", subject]
        command += ["-addext", "basicConstraints=critical,CA:FALSE"]
        command += ["-addext", "extendedKeyUsage=serverAuth,clientAuth"]
        command += ["-addext", f"subjectAltName={alternatives}"] if alternatives else []
        run([*command, "-keyout", f"{name}.key", "-out", f"{name}.crt"], cwd=self._folder)

    def kubeconfig(self, path: Path, client: str, server: str) -> Path:
        """Write a kubeconfig file, complete in itself, for a client of the server at that URL."""
        cluster = {"server": server, "certificate-authority-data": self._data("ca.crt")}
        user = {"client-certificate-data": self._data(f"{client}.crt"), "client-key-data": self._data(f"{client}.key")}
        content: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": client, "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": client}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def _data(self, file: str) -> str:
        return base64.b64encode((self._folder / file).read_bytes()).decode()
