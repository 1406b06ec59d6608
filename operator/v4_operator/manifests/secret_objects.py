"""The Secrets of a V4Deployment: component token and API key. They are created once and never updated.

This is the only place where a desired object contains random values. The objects are written only if they do not exist.
"""

import base64
import secrets
from collections.abc import Mapping
from typing import Any

from v4_core.kubernetes import API_KEY_ENTRY, API_KEYS_FILE, TOKEN_FILE
from v4_operator.manifests.names import CREATE_ONLY, child, metadata
from v4_operator.manifests.settings import Settings
from v4_operator.spec.v4deployment import V4Deployment

DEFAULT_TENANT = "default"


def secret_objects(v4d: V4Deployment, settings: Settings) -> list[dict[str, Any]]:
    """The component token, and an API key unless the user brings keys or turns authentication off."""
    made = [_secret(v4d, settings, "token", _token())]
    if keys_secret(v4d) == child(v4d, "api-key"):
        made.append(_secret(v4d, settings, "api-key", _api_key()))
    return made


def keys_secret(v4d: V4Deployment) -> str:
    """Name of the Secret with API keys; empty if the router requires none."""
    if v4d.spec.router.auth == "none":
        return ""
    return v4d.spec.router.api_keys_secret or child(v4d, "api-key")


def _secret(v4d: V4Deployment, settings: Settings, part: str, content: Mapping[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(v4d, settings, child(v4d, part), annotations=CREATE_ONLY),
        "type": "Opaque",
        "data": {entry: base64.b64encode(text.encode()).decode() for entry, text in content.items()},
    }


def _token() -> dict[str, str]:
    return {TOKEN_FILE: secrets.token_urlsafe(32)}


def _api_key() -> dict[str, str]:
    key = f"v4-{secrets.token_urlsafe(32)}"
    return {API_KEY_ENTRY: key, API_KEYS_FILE: f'"{key}": {DEFAULT_TENANT}\n'}
