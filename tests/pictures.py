"""Takes the pictures of the page and of `v4serve top` for the documents, from a router that runs under load.

v4serve local --config FILE &    # the deployment to show
v4serve load --seconds 180 &
python -m tests.pictures http://127.0.0.1:8000
"""

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any

from playwright.async_api import Browser
from rich.console import Console

from tests.browser import browser
from v4_cli.top import fetch_facts
from v4_cli.top_view import frame

IMAGES = Path(__file__).parents[1] / "docs" / "images"
_SECONDS = 90  # for which the page collects data before its picture is taken


async def page(one: Browser, url: str, name: str, width: int, height: int, **options: Any) -> None:
    """Take a picture of the page in a window of `width` by `height` pixels."""
    context = await one.new_context(viewport={"width": width, "height": height}, **options)
    shown = await context.new_page()
    await shown.goto(url)
    await asyncio.sleep(_SECONDS)
    await shown.screenshot(path=IMAGES / name, full_page=width > height)


def top(url: str) -> None:
    """Write a frame of `v4serve top`, 80 columns wide, as an SVG that loads nothing from other servers.

    It shows the same time window as the pictures of the page.
    """
    with open(os.devnull, "w") as nowhere:
        console = Console(width=80, record=True, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(frame(url, fetch_facts(url), 80))
        drawn = console.export_svg(title="v4serve top")
    own_fonts = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    (IMAGES / "top.svg").write_text(own_fonts, encoding="utf-8")


async def main(url: str) -> None:
    """Take all pictures."""
    IMAGES.mkdir(exist_ok=True)
    async with browser() as one:
        await asyncio.gather(
            page(one, url, "page.png", 1280, 600),
            page(one, url, "page-phone.png", 360, 780, device_scale_factor=1.5, color_scheme="dark"),
        )
        top(url)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
