"""The page at `/`: one document that asks nobody but its own router, and headers that hold it to that.

The files beside this one are its parts; page.js asks for the router's facts and draws them.
"""

import base64
import hashlib
from importlib.resources import files


def _part(name: str) -> str:
    return (files(__name__) / name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """What a policy calls an inline text by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_STYLE = _part("page.css")
_SCRIPT = _part("page.js")
_POLICY = {
    "default-src": "'none'",
    "script-src": _source(_SCRIPT),
    "style-src": _source(_STYLE),
    "img-src": "data:",  # its empty icon
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}

PAGE = (
    _part("page.html")
    .replace("<style></style>", f"<style>{_STYLE}</style>")
    .replace("<script></script>", f"<script>{_SCRIPT}</script>")
)
PAGE_HEADERS = {
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
