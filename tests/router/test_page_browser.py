"""The page in a real browser, with a real router and fake workers."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser import browser
from tests.router.conftest import Deploy, Deployment, listening, until
from v4_router.app import build_monitoring_app

HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'

# Returns, for each text of the page, its contrast to its background, by WCAG's formula.
CONTRASTS = """() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (element) => {
    const color = channels(getComputedStyle(element).backgroundColor);
    return color[3] === 0 ? ground(element.parentElement) : color;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest("script, style")) continue;
    const pair = [light(channels(getComputedStyle(element).color)), light(ground(element))].sort((a, b) => a - b);
    found.push([walker.currentNode.data, (pair[1] + 0.05) / (pair[0] + 0.05)]);
  }
  return found;
}"""


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    async with browser() as one:
        yield one


class Seen:
    """A page, and the errors that the browser reports."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.asked: set[str] = set()
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.asked.add(request.url))

    async def text(self) -> str:
        """Returns the visible text of the page."""
        return await self.page.inner_text("body")

    async def tile(self, title: str) -> tuple[float, str]:
        """Returns a tile's figure, and the text below it."""
        tile = self.page.locator(".tile", has=self.page.get_by_role("heading", name=title))
        value = await tile.locator(".value").inner_text()
        number = re.match(r"[\d.,]+", value)
        return float(number[0].replace(",", "")) if number else float("nan"), await tile.locator(".more").inner_text()

    async def wide(self) -> bool:
        """Returns whether the page is wider than the window."""
        return bool(await self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))


@asynccontextmanager
async def opened(chromium: Browser, url: str, width: int = 1280, **options: Any) -> AsyncIterator[Seen]:
    context = await chromium.new_context(viewport={"width": width, "height": 740}, **options)
    try:
        seen = Seen(await context.new_page())
        answer = await seen.page.goto(url)
        assert answer is not None
        assert answer.ok
        yield seen
    finally:
        await context.close()


@asynccontextmanager
async def traffic(d: Deployment) -> AsyncIterator[None]:
    """Sends requests one after another, and one with a long answer."""

    async def short() -> None:
        while True:
            await d.complete([10] * 600, max_tokens=20)

    tasks = [asyncio.create_task(short()), asyncio.create_task(d.complete([10], max_tokens=100_000))]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def test_it_follows_traffic(deploy: Deploy, chromium: Browser) -> None:
    d = await deploy(1, 2)
    d.prefill[0].remembers = True
    for worker in d.decode:
        worker.step_seconds = 0.005
    async with opened(chromium, d.url) as seen:
        await expect(seen.page.locator("#router")).to_have_text("ready")
        for worker in d.workers:
            await expect(seen.page.get_by_text(worker.address)).to_be_visible()
        assert await seen.page.locator(".pool h2").all_inner_texts() == ["Prefill", "Decode"]
        async with traffic(d):
            await eventually(lambda: shows_traffic(seen))
        assert seen.complaints == []
        assert {httpx.URL(url).path for url in seen.asked if not url.startswith("data:")} == {"/", "/facts"}
        assert {httpx.URL(url).host for url in seen.asked if not url.startswith("data:")} == {"127.0.0.1"}


async def shows_traffic(seen: Seen) -> None:
    requests, below = await seen.tile("Requests")
    assert requests > 0
    assert re.fullmatch(r"[12] running", below)
    assert (await seen.tile("Prompt tokens"))[0] > 0
    assert (await seen.tile("Generated tokens"))[0] > 0
    assert 0 < (await seen.tile("Prefix hits"))[0] < 100
    assert (await seen.tile("TTFT"))[0] > 0
    assert (await seen.tile("ITL"))[0] > 0
    moved, below = await seen.tile("Transfers")
    assert moved > 0
    assert "at 4.0 kB/s each" in below, "fake workers move 1000 bytes in 0.25 s, after a wait"
    await expect(seen.page.locator(".pool").nth(1)).to_contain_text("2 of 2 ready")
    await expect(seen.page.locator("#foot")).to_contain_text(
        re.compile(r"quantiles are of this router's last ([1-9]|10) s,")
    )
    points = await seen.page.locator(".tile path").first.get_attribute("d")
    assert points is not None
    assert points.count("L") >= 2, "a line"


async def eventually(check: Callable[[], Awaitable[None]]) -> None:
    """Polls until a check holds; on timeout its own assertion says what did not hold."""
    deadline = asyncio.get_running_loop().time() + 60
    while True:
        try:
            return await check()
        except AssertionError:
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_is_legible_on_a_phone(deploy: Deploy, chromium: Browser, scheme: Any) -> None:
    d = await deploy(1, 1)
    w, gone = d.decode[0], await deploy(0, 1)
    await gone.decode[0].kill()
    pod = "chat-decode-5f3a9c-" + "x" * 44
    d.discover(d.prefill[0].endpoint(pod="p", revision="r1"), w.endpoint(pod=pod, revision="r1"),
               gone.decode[0].endpoint(pod="gone", revision="r" * 63))  # fmt: skip
    async with opened(chromium, d.url, 360, color_scheme=scheme, device_scale_factor=2) as seen:
        await expect(seen.page.get_by_text("does not serve")).to_be_visible()
        await expect(seen.page.get_by_text("down", exact=True)).to_be_visible()
        await until(lambda: "UNAVAILABLE" in d.router.fleet.links[gone.decode[0].address].error, "the reason")
        await expect(seen.page.get_by_text("UNAVAILABLE: Connection refused").first).to_be_visible()
        assert not await seen.wide()
        contrasts = await seen.page.evaluate(CONTRASTS)
        assert len(contrasts) > 40
        assert [pair for pair in contrasts if pair[1] < 4.5] == []
        sizes = "[...document.querySelectorAll('body *')].map((one) => parseFloat(getComputedStyle(one).fontSize))"
        assert min(await seen.page.evaluate(sizes)) >= 11


async def test_text_of_workers_is_not_markup(deploy: Deploy, chromium: Browser) -> None:
    d = await deploy(1, 1)
    d.discover(d.prefill[0].endpoint(pod=HOSTILE, revision=HOSTILE), d.decode[0].endpoint(pod="d", revision=HOSTILE))
    d.router.fleet.links[d.decode[0].address].error = HOSTILE
    async with opened(chromium, d.url) as seen:
        await expect(seen.page.get_by_role("heading", name=HOSTILE)).to_be_visible()
        await expect(seen.page.get_by_text(f"revision {HOSTILE}")).to_be_visible()
        assert (await seen.text()).count(HOSTILE) >= 4
        assert await seen.page.locator("img").count() == 0
        assert await seen.page.title() == "tiny – v4serve"
        assert seen.complaints == []


async def test_its_policy_holds(deploy: Deploy, chromium: Browser) -> None:
    """Even if a text were inserted as markup, the policy would let nothing run or be fetched."""
    d = await deploy(0, 1)
    async with opened(chromium, d.url) as seen:
        await seen.page.evaluate(
            """() => {
              document.body.insertAdjacentHTML("beforeend", '<p onclick="document.title = 1" id="x">x</p>');
              document.getElementById("x").click();
              const script = document.createElement("script");
              script.textContent = "document.title = 2";
              document.body.append(script);
              const image = document.createElement("img");
              image.src = "/metrics";
              document.body.append(image);
            }"""
        )
        await expect(seen.page.locator("#router")).to_have_text("ready")
        assert await seen.page.title() == "tiny – v4serve"
        await until(lambda: len(seen.complaints) >= 3, "the browser complains")
        assert all("Content Security Policy" in complaint for complaint in seen.complaints)


async def test_a_router_that_dies_and_comes_back(deploy: Deploy, chromium: Browser) -> None:
    d = await deploy(1, 1)
    app = build_monitoring_app(d.router)
    context = await chromium.new_context()
    page = await context.new_page()
    banner = page.locator("#banner")
    async with listening(app) as url:
        await page.goto(url)
        await expect(page.locator("#router")).to_have_text("ready")
        await expect(banner).to_be_hidden()
    await expect(banner).to_be_visible(timeout=60_000)
    await expect(page.locator("#router")).to_have_text("no answer")
    await expect(page.locator("#router")).to_have_class("state bad")
    text = await banner.inner_text()
    assert re.fullmatch(r"No answer from the router since \d+:\d\d:\d\d\s\w\w: .+\. Retrying every second\.", text)
    assert await page.locator(".worker").count() == 2, "what was known stays"
    async with listening(app, httpx.URL(url).port or 0):
        await expect(banner).to_be_hidden(timeout=60_000)
        await expect(page.locator("body")).not_to_have_class("stale")
        await expect(page.locator("#router")).to_have_text("ready")
        await context.close()


async def test_stale_since_the_last_answer(deploy: Deploy, chromium: Browser) -> None:
    """The banner has the time of the last answer, not the time at which the next request timed out."""
    d = await deploy(0, 1)
    async with opened(chromium, d.url) as seen:
        await expect(seen.page.locator("#router")).to_have_text("ready")
        await seen.page.route("**/facts", lambda route: None)
        await expect(seen.page.locator("#banner")).to_be_visible(timeout=60_000)
        last = await seen.page.locator("#now").inner_text()
        await expect(seen.page.locator("#banner")).to_contain_text(f"No answer from the router since {last}: ")
        await seen.page.unroute_all(behavior="ignoreErrors")
