"""The page's document: where it is served, and what its headers allow. test_page_browser.py tests what it does."""

import base64
import hashlib
import re
from pathlib import Path

import httpx
import pytest

from tests.router.conftest import Deploy, listening
from v4_router.app import build_monitoring_app


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.yaml"
    file.write_text("sk-alice: alice\n")
    return file


async def test_the_page_is_on_the_api_port_without_keys(deploy: Deploy) -> None:
    d = await deploy(0, 1)
    for path in ("/", "/fleet", "/facts", "/metrics"):
        assert (await d.http.get(path)).status_code == 200
    page = await d.http.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert (await d.http.get("/nowhere")).status_code == 404


async def test_with_keys_the_page_is_on_the_monitoring_port_only(deploy: Deploy, keys: Path) -> None:
    d = await deploy(0, 1, api_keys=keys)
    for path in ("/", "/fleet", "/facts"):
        assert (await d.http.get(path)).status_code == 401
        assert (await d.http.get(path, headers={"authorization": "Bearer sk-alice"})).status_code == 404
    async with listening(build_monitoring_app(d.router)) as url, httpx.AsyncClient(base_url=url) as client:
        for path in ("/", "/fleet", "/facts", "/metrics"):
            assert (await client.get(path)).status_code == 200


async def test_the_page_is_complete_and_its_policy_allows_only_its_own_parts(deploy: Deploy) -> None:
    d = await deploy(0, 1)
    page = await d.http.get("/")
    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    for directive, tag in (("script-src", "script"), ("style-src", "style")):
        (inline,) = re.findall(f"<{tag}>(.*?)</{tag}>", page.text, re.DOTALL)
        assert len(inline) > 1000
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert policy[directive] == f"'sha256-{digest}'"
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert set(re.findall(r"https?://[^\"'`]+", page.text)) == {"http://www.w3.org/2000/svg"}, "a name, never fetched"
    assert not re.findall(r"<[^>]*\son\w+=", page.text), "no handlers in markup"
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", page.text)
