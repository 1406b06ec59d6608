"""A plugin for mypy that records which fields of the worker protocol a program reads and writes.

Each use is one line, `read|write Message.field file:line:column`, in the file that the environment variable
V4SERVE_PROTO_USES names. mypy knows the type of every expression, so a field of another class with the same name is not
mistaken for a use. `setattr` and `getattr` with a computed name are not seen.
"""

import os
from collections.abc import Callable

from mypy.nodes import ArgKind
from mypy.plugin import AttributeContext, FunctionContext, Plugin
from mypy.types import Type

from v4_core.v1 import worker_pb2

_PREFIX = f"{worker_pb2.__name__}."


class ProtoUses(Plugin):
    """Sees each attribute access and each constructor call on a message."""

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        """`message.field` on either side of an assignment."""
        if not fullname.startswith(_PREFIX):
            return None

        def hook(context: AttributeContext) -> Type:
            place = f"{context.api.path}:{context.context.line}:{context.context.column}"
            _record("write" if context.is_lvalue else "read", fullname, place)
            return context.default_attr_type

        return hook

    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        """`Message(field=...)`; `Message(**fields)` writes every field."""
        if not fullname.startswith(_PREFIX):
            return None
        message = worker_pb2.DESCRIPTOR.message_types_by_name.get(fullname.removeprefix(_PREFIX))
        if message is None:
            return None

        def hook(context: FunctionContext) -> Type:
            kinds = {kind for argument in context.arg_kinds for kind in argument}
            names = {name for argument in context.arg_names for name in argument if name}
            if ArgKind.ARG_STAR2 in kinds:
                names |= set(message.fields_by_name)
            for name in names:
                _record("write", f"{fullname}.{name}", f"{context.api.path}:{context.context.line}")
            return context.default_return_type

        return hook


def _record(use: str, fullname: str, place: str) -> None:
    with open(os.environ["V4SERVE_PROTO_USES"], "a", encoding="utf-8") as uses:
        uses.write(f"{use} {fullname.removeprefix(_PREFIX)} {place}\n")


def plugin(version: str) -> type[ProtoUses]:
    """Called by mypy."""
    return ProtoUses
