"""The handlers that kopf calls, and kopf's settings: kopf watches V4Deployments and writes nothing to the cluster."""

import asyncio
import itertools
from typing import Any

import kopf

from v4_core.kubernetes import GROUP, PLURAL, VERSION
from v4_kube.client import KubeClient
from v4_operator.runtime import Runtime


def registry(api: KubeClient, runtime: Runtime, stop_flag: asyncio.Event) -> kopf.OperatorRegistry:
    """Returns the handlers of one process. On cleanup they set `stop_flag`."""
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
        stop_flag.set()  # otherwise kopf's shutdown waits for its own task that waits for this flag

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)
    async def on_event(event: kopf.RawEvent, **_: Any) -> None:
        runtime.on_event(event["type"] == "DELETED", event["object"])

    return handlers


def settings() -> kopf.OperatorSettings:
    """Settings with which kopf writes nothing and needs no rights beyond its watch."""
    chosen = kopf.OperatorSettings()
    chosen.posting.enabled = False
    chosen.scanning.disabled = True  # scanning needs rights on namespaces and definitions
    chosen.networking.request_timeout = 30.0
    chosen.networking.connect_timeout = 10.0
    chosen.networking.error_backoffs = itertools.repeat(2.0)  # keep trying while the API server restarts
    chosen.watching.server_timeout = 300  # kopf puts the value into the URL unchanged, so it must be an integer
    chosen.watching.connect_timeout = 10.0
    return chosen


async def _connection(api: KubeClient) -> kopf.ConnectionInfo:
    """Returns the address and the credentials of the operator's own client."""
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
