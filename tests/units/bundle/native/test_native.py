from __future__ import annotations

import os
import shlex
import shutil

import pytest

from bundle import native


def test_extension_is_built_where_there_is_a_compiler() -> None:
    compiler = shlex.split(os.environ.get("CC", "cc"))[0]
    if shutil.which(compiler) is None:
        pytest.skip("there is no C compiler: numpy reads the rows")
    assert native.MISSING == ""
    assert native.Rows is not None
