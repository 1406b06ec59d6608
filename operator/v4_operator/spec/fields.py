"""Reads typed values from a manifest that no schema has validated. Knows no field by name. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, TypeVar

from kubernetes.utils.quantity import parse_quantity

from v4_core.errors import V4Error

T = TypeVar("T", bound=str)
_Kind = Literal["text", "whole", "flag", "object", "list"]
_TYPES: dict[_Kind, tuple[type, str]] = {
    "text": (str, "text"),
    "whole": (int, "a whole number"),
    "flag": (bool, "true or false"),
    "object": (Mapping, "an object"),
    "list": (list, "a list"),
}

_BEYOND_QUANTITIES = 2**63  # the API server stores quantities as 64-bit integers
QUANTITY_HINT = "write a number, alone or with a unit, as 500m, 4 or 16Gi"


def quantity(value: object) -> Decimal | None:
    """Parses a Kubernetes quantity such as `500m` or `16Gi`. Returns None if it is malformed or negative."""
    if not isinstance(value, int | str) or isinstance(value, bool):
        return None
    try:
        amount: Decimal = parse_quantity(value)
    except ValueError:
        return None
    return amount if amount.is_finite() and 0 <= amount < _BEYOND_QUANTITIES else None


class FieldError(V4Error):
    """The value of a field has the wrong type or is out of range."""


@dataclass(frozen=True)
class Fields:
    """The fields of one object of a manifest. A field that is absent or null has its default.

    Every method raises FieldError if the value has another type.
    """

    path: str  # of the object, for messages
    data: Mapping[str, Any]

    def __contains__(self, key: str) -> bool:
        return self.data.get(key) is not None

    def text(self, key: str, default: str = "") -> str:
        """A string."""
        value: str = self._value(key, "text", default)
        return value

    def choice(self, key: str, choices: tuple[T, ...], default: T) -> T:
        """A string that must be one of `choices`."""
        value = self.text(key, default)
        for choice in choices:
            if value == choice:
                return choice
        raise FieldError(f"{self._name(key)} is {value!r}; choose one of {', '.join(filter(None, choices))}")

    def whole(self, key: str, default: int, least: int = 0, most: int = 2**31 - 1) -> int:
        """An integer from `least` to `most`, both included."""
        value: int = self._value(key, "whole", default)
        if not least <= value <= most:
            raise FieldError(f"{self._name(key)} is {value}; it must be within {least} and {most}")
        return value

    def flag(self, key: str) -> bool:
        """A boolean; False if absent."""
        value: bool = self._value(key, "flag", False)
        return value

    def quantity(self, key: str) -> int:
        """A quantity, rounded down to whole units; 0 if absent."""
        if key not in self:
            return 0
        amount = quantity(self.data[key])
        if amount is None:
            raise FieldError(f"{self._name(key)} is {self.data[key]!r}; {QUANTITY_HINT}")
        return int(amount)

    def quantity_text(self, key: str, default: str) -> str:
        """A quantity in the notation in which it was written."""
        self.quantity(key)
        return str(self.data[key]) if key in self else default

    def group(self, key: str) -> "Fields":
        """A nested object, for reading its fields."""
        return Fields(self._name(key), self.mapping(key))

    def mapping(self, key: str) -> Mapping[str, Any]:
        """A nested object that is passed on without validation."""
        value: Mapping[str, Any] = self._value(key, "object", {})
        return value

    def texts(self, key: str) -> Mapping[str, str]:
        """A nested object whose values are strings."""
        return {name: self.group(key).text(name) for name in self.mapping(key)}

    def items(self, key: str) -> tuple["Fields", ...]:
        """A list of objects, for reading their fields."""
        values = self._value(key, "list", [])
        items = tuple((f"{self._name(key)}[{i}]", value) for i, value in enumerate(values))
        for name, value in items:
            if not isinstance(value, Mapping):
                raise FieldError(f"{name} must be an object, not {value!r}")
        return tuple(Fields(name, value) for name, value in items)

    def objects(self, key: str) -> tuple[Mapping[str, Any], ...]:
        """A list of objects that are passed on without validation."""
        return tuple(item.data for item in self.items(key))

    def _value(self, key: str, kind: _Kind, default: Any) -> Any:
        value = self.data.get(key)
        wanted, name = _TYPES[kind]
        if value is None:
            return default
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise FieldError(f"{self._name(key)} must be {name}, not {value!r}")
        return value

    def _name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key
