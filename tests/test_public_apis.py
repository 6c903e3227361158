"""No module of the service or of the runtime touches a private attribute of a dependency."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALLOWED = {"bundle.native._rows", "os._exit"}
"""Our own C extension, and a documented function of Python's."""
NAMED_TUPLES = {"_replace", "_asdict", "_fields", "_make"}
"""Documented methods of named tuples."""
MODULES = sorted(
    path
    for name in ("service", "runtime")
    for path in (ROOT / name).rglob("*.py")
    if "stubs" not in path.parts
)


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def private_uses(source: str) -> list[str]:
    """Returns the private names of others in a module.

    A private attribute is the module's own if its object is `self`, `cls` or `super()`, or if the module defines the
    name itself: by assigning it to `self`, in a class or a function, or in `__slots__`.
    """
    tree = ast.parse(source)
    own: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and _is_own(node.value)
        ):
            own.add(node.attr)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not _is_own(node.value):
            if node.attr not in own | NAMED_TUPLES and ast.unparse(node) not in ALLOWED:
                found.append(f"{node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            names = [f"{module}.{alias.name}".strip(".") for alias in node.names]
            private = [name for name in names if any(map(is_private, name.split(".")))]
            found += [f"{node.lineno}: {name}" for name in private if name not in ALLOWED]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in {
            "getattr",
            "setattr",
            "hasattr",
        }:
            name = node.args[1]
            if (
                isinstance(name, ast.Constant)
                and isinstance(name.value, str)
                and is_private(name.value)
            ):
                found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def _is_own(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return getattr(value.func, "id", "") == "super"
    return isinstance(value, ast.Name) and value.id in {"self", "cls"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_uses_public_apis_alone(path: Path) -> None:
    assert private_uses(path.read_text()) == []


def test_check_has_modules_to_look_at() -> None:
    assert len(MODULES) > 60


@pytest.mark.parametrize(
    "source",
    [
        "import uvicorn\nuvicorn.Server(None)._serve()",
        "def f(server):\n    return server.protocol._state",
        "from uvicorn._subprocess import get_subprocess",
        "from grpc import _channel",
        "import grpc._channel",
        "getattr(server, '_state')",
        "server._state = 1",
        "class A:\n    def f(self):\n        return self.server._state",
    ],
)
def test_private_use_of_a_dependency_is_found(source: str) -> None:
    assert len(private_uses(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def f(self):\n        self._a = 1\n        return self._a",
        "class A:\n    def _f(self):\n        return super()._f()",
        "class A:\n    def __init__(self):\n        self._a = 1\n    def f(self, other):\n        return other._a",
        "import os\nos.environ.__class__",
        "from __future__ import annotations",
    ],
)
def test_private_use_within_a_module_is_not(source: str) -> None:
    assert private_uses(source) == []
