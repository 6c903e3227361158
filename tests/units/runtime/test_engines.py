"""Which library searches an index, and what happens where it is not installed."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import pytest

from bundle.format.indexes import Engine
from runtime.engines import default_engine, is_installed, open_engine
from runtime.errors import LibraryMissing

_PROGRAM = """
import sys
import export.corpora.indexes, export.verify.parts, service.versions.loader
print(sorted({name.partition(".")[0] for name in sys.modules} & {"scann", "faiss"}))
"""


def test_what_knows_indexes_imports_no_engine_before_one_is_chosen() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout == "[]\n"


@pytest.mark.parametrize("engine", get_args(Engine))
def test_engine_that_is_not_installed_is_named(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To Python, a module that is None is not installed.
    monkeypatch.setitem(sys.modules, engine, None)
    assert not is_installed(engine)
    with pytest.raises(LibraryMissing, match=f"'{engine}'.*not installed"):
        open_engine(engine)


def test_scann_is_the_default_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    if is_installed("scann"):
        assert default_engine() == "scann"
    monkeypatch.setitem(sys.modules, "scann", None)
    assert default_engine() == "faiss"
