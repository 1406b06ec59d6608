"""Formats numbers for people: rates, shares, durations and sizes. An unknown value, None, is shown as a dash."""

NONE = "–"


def number(value: float | None) -> str:
    """Formats a number without decimals, with thousands separators."""
    return NONE if value is None else f"{value:,.0f}"


def count(value: float | None, one: str, many: str = "") -> str:
    """Formats a number with its noun. `one`: the singular. `many`: the plural, if it is not the singular with an s."""
    return f"{number(value)} {one if value is not None and round(value) == 1 else many or f'{one}s'}"


def rate(value: float | None, unit: str = "/s") -> str:
    """Formats a rate per second, with one decimal below 10."""
    return NONE if value is None else f"{value:,.{1 if value < 10 else 0}f}{unit}"


def percent(share: float | None) -> str:
    """Formats a share, 0 to 1, as a percentage."""
    return NONE if share is None else f"{100 * share:.0f} %"


def duration(seconds: float | None) -> str:
    """Formats seconds, as ms below 1 s."""
    if seconds is None:
        return NONE
    if seconds < 1:
        return f"{1000 * seconds:.{1 if seconds < 0.01 else 0}f} ms"
    return f"{seconds:.{2 if seconds < 10 else 0}f} s"


def size(nbytes: float | None, unit: str = "") -> str:
    """Formats bytes in decimal units, as usual for network throughput."""
    if nbytes is None:
        return NONE
    step = sum(nbytes >= 1000**power for power in (1, 2, 3))
    return f"{nbytes / 1000**step:.{1 if step else 0}f} {('B', 'kB', 'MB', 'GB')[step]}{unit}"
