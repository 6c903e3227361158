"""The lines of the user's code that messages name."""

from __future__ import annotations

from pathlib import Path

from export.user_lines import last_of_user


def test_file_of_a_package_is_named_from_the_package_on(tmp_path: Path) -> None:
    layers = tmp_path / "shop" / "layers"
    layers.mkdir(parents=True)
    for folder in (layers, layers.parent):
        (folder / "__init__.py").touch()
    assert last_of_user([(str(layers / "core.py"), 7)]) == "shop/layers/core.py:7"
    assert last_of_user([(str(tmp_path / "core.py"), 7)]) == "core.py:7"
