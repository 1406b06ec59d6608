"""Typed reading of a manifest, for objects that no schema has checked. Knows no field by name. Pure."""

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

_BEYOND_QUANTITIES = 2**63  # the API server's numbers end there
QUANTITY_HINT = "write a number, alone or with a unit, as 500m, 4 or 16Gi"


def quantity(value: object) -> Decimal | None:
    """An amount as Kubernetes writes it, such as `500m` or `16Gi`; None for what is none, or less than 0."""
    if not isinstance(value, int | str) or isinstance(value, bool):
        return None
    try:
        amount: Decimal = parse_quantity(value)
    except ValueError:
        return None
    return amount if amount.is_finite() and 0 <= amount < _BEYOND_QUANTITIES else None


class FieldError(V4Error):
    """A value of another type than the field has."""


@dataclass(frozen=True)
class Fields:
    """The fields of one object of a manifest; a field that is absent or null has its default. All raise FieldError."""

    path: str  # of the object, for messages
    data: Mapping[str, Any]

    def __contains__(self, key: str) -> bool:
        return self.data.get(key) is not None

    def text(self, key: str, default: str = "") -> str:
        """A string."""
        value: str = self._value(key, "text", default)
        return value

    def choice(self, key: str, choices: tuple[T, ...], default: T) -> T:
        """One of several strings."""
        value = self.text(key, default)
        for choice in choices:
            if value == choice:
                return choice
        raise FieldError(f"{self._name(key)} is {value!r}; choose one of {', '.join(filter(None, choices))}")

    def whole(self, key: str, default: int, least: int = 0, most: int = 2**31 - 1) -> int:
        """An integer within `least` and `most`."""
        value: int = self._value(key, "whole", default)
        if not least <= value <= most:
            raise FieldError(f"{self._name(key)} is {value}; it must be within {least} and {most}")
        return value

    def flag(self, key: str) -> bool:
        """True or false; absent = false."""
        value: bool = self._value(key, "flag", False)
        return value

    def quantity(self, key: str) -> int:
        """An amount in whole units; absent = 0."""
        if key not in self:
            return 0
        amount = quantity(self.data[key])
        if amount is None:
            raise FieldError(f"{self._name(key)} is {self.data[key]!r}; {QUANTITY_HINT}")
        return int(amount)

    def quantity_text(self, key: str, default: str) -> str:
        """An amount as it was written, number or text."""
        self.quantity(key)
        return str(self.data[key]) if key in self else default

    def group(self, key: str) -> "Fields":
        """An object whose fields are read."""
        return Fields(self._name(key), self.mapping(key))

    def mapping(self, key: str) -> Mapping[str, Any]:
        """An object that is handed on unread."""
        value: Mapping[str, Any] = self._value(key, "object", {})
        return value

    def texts(self, key: str) -> Mapping[str, str]:
        """An object of strings."""
        return {name: self.group(key).text(name) for name in self.mapping(key)}

    def items(self, key: str) -> tuple["Fields", ...]:
        """A list of objects."""
        values = self._value(key, "list", [])
        items = tuple((f"{self._name(key)}[{i}]", value) for i, value in enumerate(values))
        for name, value in items:
            if not isinstance(value, Mapping):
                raise FieldError(f"{name} must be an object, not {value!r}")
        return tuple(Fields(name, value) for name, value in items)

    def objects(self, key: str) -> tuple[Mapping[str, Any], ...]:
        """A list of objects that are handed on unread."""
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
