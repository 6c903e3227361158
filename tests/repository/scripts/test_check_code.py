"""`scripts/check_code` finds what it should, and nothing else."""

from __future__ import annotations

import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path, PurePath
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "check_code"


@pytest.fixture(scope="module")
def script() -> Any:
    loader = SourceFileLoader("check_code", str(SCRIPT))
    specification = importlib.util.spec_from_loader(loader.name, loader)
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("export/a.py", "a, b = 1, 2", "several assignments"),
        ("export/a.py", "self.a, self.b = a, b", "several assignments"),
        ("export/a.py", "[a, b] = (c, d)", "several assignments"),
        ("export/a.py", "a, b = a + 1, c", "several assignments"),
        ("export/a.py", "async def f():\n    return await g() if a else b", "`await`"),
        ("export/a.py", "a = b if c else d if e else f", "nested"),
        ("export/a.py", "a = f(b if c else d) if e else g", "nested"),
        ("export/a.py", "a = -(-b // c)", "ceiling"),
        ("export/a.py", "f(-(-len(b) // 8))", "ceiling"),
        ("export/utils.py", "", "'utils'"),
        ("export/helpers/tables.py", "", "'helpers'"),
        ("export/a.py", "# TO" + "DO: finish", "unfinished"),
        ("docs/a.md", "FIX" + "ME", "unfinished"),
        ("scripts/a", "#!/usr/bin/env python3\na, b = 1, 2", "several assignments"),
        ("service/a.py", "import uvicorn\nuvicorn.Server(None)._serve()", "_serve' is private"),
        ("service/a.py", "def f(server):\n    return server.protocol._state", "_state' is private"),
        ("service/a.py", "from uvicorn._subprocess import get_subprocess", "_subprocess"),
        ("runtime/a.py", "from grpc import _channel", "grpc._channel"),
        ("runtime/a.py", "import grpc._channel", "grpc._channel"),
        ("object_store/a.py", "getattr(server, '_state')", "_state"),
        ("service/a.py", "server._state = 1", "server._state"),
        ("tests/a.py", "A = 'from export.errors import None_'", "no 'None_' to import from exp"),
        (
            "tests/a.py",
            "A = '  import sys\\n  from bundle.nothing import A'",
            "from bundle.nothing",
        ),
        ("service/a.py", "class A:\n    def f(self):\n        self.server._state()", "_state"),
    ],
)
def test_violation_is_found_once(script: Any, name: str, source: str, message: str) -> None:
    findings = script.check(PurePath(name), source.encode())
    assert len(findings) == 1
    assert message in findings[0].message


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("export/a.py", "a, b = b, a"),
        ("export/a.py", "a, b, c = b, c, next(d)"),
        ("export/a.py", "rows[i], rows[j] = rows[j], rows[i]"),
        ("export/a.py", "a, b = b, a % b"),
        ("export/a.py", "a, b = f()"),
        ("export/a.py", "a, *b = c, *d"),
        ("export/a.py", "a = b = c"),
        ("export/a.py", "a = b, c"),
        ("export/a.py", "async def f():\n    a = await (g() if b else h())"),
        ("export/a.py", "a = (b if c else d, e if f else g)"),
        ("export/a.py", "a = -(b // c)"),
        ("export/a.py", "a = -b // c"),
        ("export/based.py", "import collections_helpers"),
        ("docs/common.md", "a, b = 1, 2"),
        ("export/a.bin", "\0a, b = 1, 2"),
        ("export/a.py", "import tensorflow\ntensorflow._api"),
        ("service/a.py", "class A:\n    def f(self):\n        self._a = 1\n        return self._a"),
        ("service/a.py", "class A:\n    def _f(self):\n        return super()._f()"),
        ("service/a.py", "class A:\n    def f(self, b):\n        self._a = 1\n        return b._a"),
        ("service/a.py", "import os\nos.environ.__class__\nos._exit(1)"),
        ("service/a.py", "from __future__ import annotations"),
        ("service/a.py", "from bundle.native import _rows"),
        ("service/a.py", "row._replace(a=1)"),
        ("tests/a.py", "A = 'from bundle.native import _rows'"),
        ("tests/a.py", "A = 'from rowcast_client import errors'"),
        ("tests/a.py", "A = 'from our export import tables'"),
        ("tests/a.py", "A = 'from export.{module} import tables'"),
    ],
)
def test_other_code_passes(script: Any, name: str, source: str) -> None:
    assert script.check(PurePath(name), source.encode()) == []
