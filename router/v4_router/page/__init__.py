"""The page at `/`: one HTML document that contacts only its own router, and headers that enforce this.

The document is assembled from the other files of this folder. page.js fetches the router's /facts and draws them.
"""

import base64
import hashlib
from importlib.resources import files


def _part(name: str) -> str:
    return (files(__name__) / name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """Returns the source expression by which a Content-Security-Policy allows an inline text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_STYLE = _part("page.css")
_SCRIPT = _part("page.js")
_POLICY = {
    "default-src": "'none'",
    "script-src": _source(_SCRIPT),
    "style-src": _source(_STYLE),
    "img-src": "data:",  # the empty icon
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
