"""Tells before an export what LiteRT lacks for a tower: it is compiled aside, with the weights it was built with."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from export.graph.data_flow import fill
from export.graph.pruning import TracedTower
from export.towers.compiled import compile_tower
from export.towers.savedmodels import save_function


def why_not_compiled(tower: TracedTower) -> str:
    """Returns what keeps a tower from LiteRT; "" if nothing does."""
    with TemporaryDirectory(prefix="rowcast-") as aside:
        fill(tower.variables)
        save_function(tower, Path(aside, "saved_model"))
        return compile_tower(Path(aside, "saved_model"), "f32", Path(aside, "compiled.tflite")).reason
