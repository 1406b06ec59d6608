"""No circle of imports is left: a module can be read, tested and moved without the modules that use it."""

import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """The strongly connected components of more than one module, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for imported in imports[module]:
            if imported not in order:
                visit(imported)
            if imported in stack:
                lowest[module] = min(lowest[module], lowest[imported])
        if lowest[module] == order[module]:
            circle = set(stack[stack.index(module) :])
            del stack[stack.index(module) :]
            if len(circle) > 1:
                found.append(circle)

    for module in imports:
        if module not in order:
            visit(module)
    return found


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c", "d"}, "c": {"b"}, "d": set()}) == [{"b", "c"}]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_no_module_imports_itself_through_others() -> None:
    """Imports for type checkers count: who reads the types reads both files."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False)
    assert circles({module: graph.find_modules_directly_imported_by(module) for module in graph.modules}) == []
