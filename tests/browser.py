"""Headless Chromium, as Debian packages it, driven by Playwright."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, async_playwright

from tests.cluster.machine import cache
from tests.cluster.machine.recipes import debian

# The sandbox is off because tests may run as root. The other flags stop connections to servers other than the page's.
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium() -> str:
    """Return the path of the browser. If it is missing, CI installs it, and elsewhere the test is skipped."""
    found = shutil.which("chromium")
    if found is None and os.environ.get("CI") == "true":
        with cache.lock("packages"):
            debian.install("chromium")
        found = shutil.which("chromium")
        assert found is not None
    if found is None:
        pytest.skip("needs chromium: apt-get install chromium")
    return found


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Start a browser with an empty profile."""
    path = chromium()
    async with async_playwright() as playwright:
        one = await playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        try:
            yield one
        finally:
            await one.close()
