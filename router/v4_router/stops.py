"""Finds stop strings in a growing text. Pure: knows neither tokens nor streams."""


class StopMatcher:
    """Releases text until a stop string is complete, and holds back text that may be the beginning of a stop string.

    The stop string that is complete first ends the text; if several end at the same character, the longest one does. So
    the result does not depend on how the text is split into pieces.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Adds text. Returns the text that is released, and whether a stop string has ended it.

        Must not be called again after a stop string.
        """
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
        """Returns the text that is held back, at the end of the text."""
        held, self._held = self._held, ""
        return held

    def _undecided(self, text: str) -> int:
        """Returns the length of the longest suffix of `text` that is a proper prefix of a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
