"""Settings that cannot be used."""

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
        ({"request_timeout_seconds": 0.0}, "timeouts"),
        ({"segment_cache_bytes": -1}, "segment_cache_bytes"),
    ],
)
def test_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
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
