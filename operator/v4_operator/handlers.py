"""The handlers that kopf calls, and how kopf is set up: it watches V4Deployments and writes nothing to the cluster."""

import asyncio
import itertools
from typing import Any

import kopf

from v4_core.kubernetes import GROUP, PLURAL, VERSION
from v4_kube.client import KubeClient
from v4_operator.runtime import Runtime


def registry(api: KubeClient, runtime: Runtime, stop_flag: asyncio.Event) -> kopf.OperatorRegistry:
    """What kopf calls."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await _connection(api)

    @kopf.on.startup(registry=handlers)
    async def start(**_: Any) -> None:
        runtime.start()

    @kopf.on.cleanup(registry=handlers)
    async def stop(**_: Any) -> None:
        await runtime.close()
        stop_flag.set()  # kopf's end would wait for its own task that waits for the flag

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)
    async def seen(event: kopf.RawEvent, **_: Any) -> None:
        runtime.seen(event["type"] == "DELETED", event["object"])

    return handlers


def settings() -> kopf.OperatorSettings:
    """kopf watches, and writes nothing."""
    chosen = kopf.OperatorSettings()
    chosen.posting.enabled = False
    chosen.scanning.disabled = True  # needs no rights on namespaces or definitions
    chosen.networking.request_timeout = 30.0
    chosen.networking.connect_timeout = 10.0
    chosen.networking.error_backoffs = itertools.repeat(2.0)  # an API server that restarts ends nothing
    chosen.watching.server_timeout = 300  # goes into the address as it is
    chosen.watching.connect_timeout = 10.0
    return chosen


async def _connection(api: KubeClient) -> kopf.ConnectionInfo:
    """The one cluster that the operator's own client talks to, and as whom."""
    configuration = api.configuration
    header = await configuration.get_api_key_with_prefix("BearerToken") or ""
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        username=configuration.username,
        password=configuration.password,
        token=header.partition(" ")[2] or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
        trust_env=True,
    )
