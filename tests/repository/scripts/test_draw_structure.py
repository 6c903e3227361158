"""`scripts/draw_structure` draws the imports of the code, and says what it cannot draw."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import grimp
import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"
PROGRAMS = ("rowcast_client", "export", "service")
PACKAGES = (*PROGRAMS, "rows", "command_line", "tensors", "object_store", "runtime", "bundle")


@pytest.fixture(scope="module")
def script() -> Any:
    loader = SourceFileLoader("draw_structure", str(SCRIPTS / "draw_structure"))
    specification = importlib.util.spec_from_loader(loader.name, loader)
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    sys.path.insert(0, str(SCRIPTS))
    loader.exec_module(module)
    sys.path.remove(str(SCRIPTS))
    return module


@pytest.fixture
def graph() -> grimp.ImportGraph:
    """The packages of the whole project, without an import."""
    graph = grimp.ImportGraph()
    for package in PACKAGES:
        graph.add_module(package)
    return graph


def test_import_that_follows_from_others_is_not_drawn(
    script: Any, graph: grimp.ImportGraph
) -> None:
    graph.add_import(importer="service", imported="runtime")
    graph.add_import(importer="runtime", imported="bundle")
    expected = script.draw(script.PICTURES[0], graph)

    graph.add_import(importer="service", imported="bundle")

    assert script.draw(script.PICTURES[0], graph) == expected
    assert expected.count('class="arrow"') == 2 + 1  # and one in the legend


@pytest.mark.parametrize(
    ("importer", "imported", "message"),
    [
        ("bundle", "service", "bundle imports service, which is not below it"),
        ("rowcast_client", "object_store", "rowcast_client has no straight line to command_line"),
    ],
)
def test_import_that_cannot_be_drawn_is_named(
    script: Any, graph: grimp.ImportGraph, importer: str, imported: str, message: str
) -> None:
    graph.add_import(importer=importer, imported=imported)

    with pytest.raises(script.Undrawable, match=message):
        script.draw(script.PICTURES[0], graph)


def test_package_without_a_box_is_named(script: Any, graph: grimp.ImportGraph) -> None:
    picture = script.PICTURES[0]
    boxes = tuple(
        box for box in picture.boxes if box.names != "command_line runtime object_store tensors"
    )

    with pytest.raises(
        script.Undrawable, match="no box for command_line, object_store, runtime, tensors"
    ):
        script.draw(replace(picture, boxes=boxes), graph)
