"""The router's settings: which are refused, and which are allowed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from v4_core.errors import ConfigError
from v4_router.config import RouterConfig
from v4_router.router import default_mode

GOOD = RouterConfig(Path("model"), "name", ("a:1",), ("b:2",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"served_name": ""}, "served_name"),
        ({"decode": ()}, "decode worker"),
        ({"decode": ("nonsense",)}, "host:port"),
        ({"prefill": ("a:99999",)}, "host:port"),
        ({"prefill": ("b:2",)}, "twice"),
        ({"port": -1}, "port"),
        ({"monitoring_port": 70000}, "monitoring_port"),
        ({"port": 8000, "monitoring_port": 8000}, "port and monitoring_port are both 8000"),
        ({"connect_timeout_seconds": 0.0}, "connect_timeout_seconds"),
        ({"drain_seconds": -1.0}, "drain_seconds"),
        ({"deployment": "d", "namespace": "n"}, "both a deployment and worker addresses"),
        ({"deployment": "d", "decode": (), "prefill": ()}, "give both, or neither"),
        ({"namespace": "n", "decode": (), "prefill": ()}, "give both, or neither"),
        ({"host": "0.0.0.0"}, "without api_keys anyone"),
        ({"host": "::"}, "without api_keys anyone"),
        ({"host": "router.example"}, "without api_keys anyone"),
        ({"segment_cache_bytes": -1}, "segment_cache_bytes"),
    ],
)
def test_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(GOOD, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"deployment": "d", "namespace": "n", "prefill": (), "decode": ()},
        {"host": "0.0.0.0", "insecure": True},
        {"host": "0.0.0.0", "api_keys": Path("keys.yaml")},
        {"host": "::1"},
        {"host": "localhost"},
    ],
)
def test_allowed(change: dict[str, Any]) -> None:
    replace(GOOD, **change)


def test_a_router_without_prefill_workers_is_allowed() -> None:
    assert RouterConfig(Path("model"), "name", decode=("b:2",)).prefill == ()


@pytest.mark.parametrize(("text", "mode"), [('{"default_mode": "chat"}', "chat"), ("{}", "thinking")])
def test_default_mode(tmp_path: Path, text: str, mode: str) -> None:
    assert default_mode(tmp_path) == "thinking"
    (tmp_path / "generation_config.json").write_text(text)
    assert default_mode(tmp_path) == mode


@pytest.mark.parametrize("text", ['{"default_mode": "loud"}', "[]", "{"])
def test_unusable_default_mode(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ConfigError, match="generation_config"):
        default_mode(tmp_path)
