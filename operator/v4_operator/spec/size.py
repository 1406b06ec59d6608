"""Numbers of workers by role. Pure."""

from typing import NamedTuple


class Size(NamedTuple):
    """Workers of each role."""

    prefill: int
    decode: int

    @property
    def pairs(self) -> int:
        """Prefill and decode workers that can be matched one to one."""
        return min(self)

    def plus(self, other: "Size") -> "Size":
        """Sum of each role."""
        return Size(*(a + b for a, b in zip(self, other, strict=True)))

    def less(self, other: "Size") -> "Size":
        """Difference of each role, at least 0."""
        return Size(*(max(a - b, 0) for a, b in zip(self, other, strict=True)))

    def lowest(self, other: "Size") -> "Size":
        """The smaller of each role."""
        return Size(*map(min, self, other))

    def highest(self, other: "Size") -> "Size":
        """The larger of each role."""
        return Size(*map(max, self, other))

    def covers(self, other: "Size") -> bool:
        """Whether there are at least as many of each role."""
        return self.prefill >= other.prefill and self.decode >= other.decode


NONE = Size(0, 0)
