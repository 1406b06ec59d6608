"""Figures as people read them: rates, shares, times, sizes. A dash where nothing is known."""

NONE = "–"


def number(value: float | None) -> str:
    """A whole number."""
    return NONE if value is None else f"{value:,.0f}"


def count(value: float | None, one: str, many: str = "") -> str:
    """So many of what is called `one`; `many` where more of it are not just with an s."""
    return f"{number(value)} {one if value is not None and round(value) == 1 else many or f'{one}s'}"


def rate(value: float | None, unit: str = "/s") -> str:
    """Per second; below 10 with one decimal."""
    return NONE if value is None else f"{value:,.{1 if value < 10 else 0}f}{unit}"


def percent(share: float | None) -> str:
    """Of a whole that is 1."""
    return NONE if share is None else f"{100 * share:.0f} %"


def duration(seconds: float | None) -> str:
    """In ms below a second."""
    if seconds is None:
        return NONE
    if seconds < 1:
        return f"{1000 * seconds:.{1 if seconds < 0.01 else 0}f} ms"
    return f"{seconds:.{2 if seconds < 10 else 0}f} s"


def size(nbytes: float | None, unit: str = "") -> str:
    """In decimal units, as links are measured."""
    if nbytes is None:
        return NONE
    step = sum(nbytes >= 1000**power for power in (1, 2, 3))
    return f"{nbytes / 1000**step:.{1 if step else 0}f} {('B', 'kB', 'MB', 'GB')[step]}{unit}"
