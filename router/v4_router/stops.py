"""Stop strings over a growing text. Pure: knows neither tokens nor streams."""


class StopMatcher:
    """Passes text on until a stop string is complete, and holds back what may still become one.

    The stop string that is complete first wins, the longest where several end at the same character; so the result
    does not depend on how the text is cut.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that may be shown now, and whether a stop string ended it (nothing may be pushed after that)."""
        if not self._stops:
            return text, False
        text = self._held + text
        ends = [(at + len(stop), -len(stop)) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            end, length = min(ends)
            self._held = ""
            return text[: end + length], True
        keep = self._undecided(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """What was held back, when nothing follows."""
        held, self._held = self._held, ""
        return held

    def _undecided(self, text: str) -> int:
        """Length of the longest end of `text` that is a beginning of a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
