from __future__ import annotations

import sys
from types import ModuleType

import pytest

from export import steps
from export.graphs.loading import TESTED, load_tensorflow, note_untested_releases


@pytest.mark.parametrize(("package", "tested"), TESTED.items())
def test_untested_release_of_a_library_is_a_note_that_names_the_tested_one(
    package: str, tested: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType(package)
    module.__version__ = "9.1.0.dev2"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), module)
    (note,) = [note for note in note_untested_releases() if note.startswith(f"{package} ")]
    assert note.startswith(f"{package} 9.1.0.dev2: rowcast-export ")
    assert f"is tested with {tested};" in note


def test_tested_releases_need_no_note() -> None:
    load_tensorflow()
    assert note_untested_releases() == ()


def test_versions_include_a_module_whose_distribution_has_another_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("unlisted")
    module.__version__ = "2.20.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "unlisted", module)
    assert steps.versions(("unlisted", "absent")) == {"unlisted": "2.20.0"}
