"""How the page draws facts, in a real browser."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from tests.router.conftest import Deploy, Deployment
from tests.router.test_facts import LOAD, known, worker
from tests.router.test_page_browser import Seen, chromium, opened  # noqa: F401


def told(*workers: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Returns the /facts of a router with these workers, with some fields replaced."""
    return {**asdict(known(*workers)), **changes}


@asynccontextmanager
async def showing(d: Deployment, chromium: Browser, facts: Mapping[str, Any], width: int) -> AsyncIterator[Seen]:  # noqa: F811
    """Opens the page of a router that answers these facts."""
    async with opened(chromium, d.url, width) as seen:
        await seen.page.route("**/facts", lambda route: route.fulfill(json=facts))
        await seen.page.reload()
        await expect(seen.page.locator("#router")).not_to_be_empty()
        yield seen


async def test_used_slots_are_not_counted_as_checkpoints(deploy: Deploy, chromium: Browser) -> None:  # noqa: F811
    one = worker("decode", "d-1", load={**LOAD, "blocks_used": 0, "checkpoint_slots_used": 65, "slots_free": 35})
    async with showing(await deploy(0, 1), chromium, told(one), 1280) as seen:
        figure = seen.page.locator(".worker dl > div", has_text="slots used")
        await expect(figure.locator("dd")).to_have_text("0 of 100")
        assert await seen.page.locator(".bar .checkpoint").get_attribute("style") == "width: 65%;"


async def test_one_is_not_many(deploy: Deploy, chromium: Browser) -> None:  # noqa: F811
    load = {**LOAD, "running": 1, "leases": 1, "queued_tokens": 1}
    facts = told(worker("prefill", "p", load=load), worker("decode", "d", load=load), recomputations=1.0, failed=0.5)
    async with showing(await deploy(0, 1), chromium, facts, 1280) as seen:
        assert (await seen.tile("Transfers"))[1].endswith(", 1 lease held")
        assert (await seen.tile("Generated tokens"))[1] == "1 sequence on decode"
        assert (await seen.tile("Retries"))[1] == "1 recomputed, 0 migrated"
        await expect(seen.page.locator(".pool").first).to_contain_text("1 token queued")
        await expect(seen.page.locator(".tile .bad").first).to_have_text(", 0.5/s failed")


@pytest.mark.parametrize("width", [360, 1280])
async def test_figures_have_room(deploy: Deploy, chromium: Browser, width: int) -> None:  # noqa: F811
    """No figure wraps; at a width of 1280 all tiles have the same height, and six figures fit in a row."""
    load = {**LOAD, "slots_total": 8550, "blocks_used": 8164, "slots_free": 300, "queued_tokens": 123_456}
    workers = [worker(role, f"{role}-1", load=load) for role in ("prefill", "decode")]
    busy = {"failed": 12.3, "transfers": 12.0, "transferred_bytes": 1e9, "transfer_speed": 123.4e6}
    router = {**told()["router"], "requests": 64, "waiting_for_room": 0}
    async with showing(await deploy(0, 1), chromium, told(*workers, router=router, **busy), width) as seen:
        heights = "(name) => [...document.querySelectorAll(name)].map((one) => one.getBoundingClientRect().height)"
        assert len(set(await seen.page.evaluate(heights, ".worker dd"))) == 1
        assert not await seen.wide()
        if width == 1280:
            assert len(set(await seen.page.evaluate(heights, ".tile"))) == 1
            assert len(set(await seen.page.evaluate(heights, ".worker dl"))) == 1
            tops = "[...document.querySelectorAll('.worker dd')].map((one) => one.getBoundingClientRect().top)"
            assert len(set(await seen.page.evaluate(tops))) == 1


async def test_a_revision_is_shown_if_it_has_a_name_or_an_error(deploy: Deploy, chromium: Browser) -> None:  # noqa: F811
    def revision(name: str, serves: bool) -> dict[str, Any]:
        return {"name": name, "serves": serves, "error": f"{name}-{serves} is down"}

    revisions = [revision("", True), revision("", False), revision("b", True)]
    facts = told(worker("decode", "d-1"), revisions=revisions)
    async with showing(await deploy(0, 1), chromium, facts, 1280) as seen:
        shown = [" ".join(row.split()) for row in await seen.page.locator(".revision").all_inner_texts()]
        assert shown == ["revision – does not serve -False is down", "revision b serves"]
