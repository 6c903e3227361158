"""A tower in a file: in any form, a function from activations to outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from bundle.shown_values import similar_file
from export.errors import NotConvertible, UsageError


class GivenTower(Protocol):
    """A tower in a file.

    Attributes:
      inputs: TensorSpecs of the tower's inputs, with an open batch, by name: activations have the
        names of their features.
    """

    @property
    def inputs(self) -> Mapping[str, Any]: ...  # noqa: D102

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """Adds its operations to the graph that is being traced; computes at once outside of one.

        Args:
          inputs: Tensors by name, of at least the tower's inputs.

        Returns:
          One tensor, or a dictionary of tensors.

        Raises:
          NotConvertible: The tower has no counterpart in TensorFlow.
        """


def open_tower(path: Path, not_finite: Collection[str] = ()) -> GivenTower:
    """Opens a tower: the directory of a SavedModel, or a file that `write_tower` of
    `scripts/torch_tower.py` wrote.

    Args:
      path: The path of the tower.
      not_finite: Names of weights that may hold NaN or infinities.

    Raises:
      UsageError: There is no such file or directory.
      NotConvertible: The tower has another form, is damaged, or has no counterpart in TensorFlow;
        or a weight is not finite.
    """
    if not path.exists():
        raise UsageError(
            f"tower {path} does not exist{similar_file(path)}; a SavedModel or an .npz file was "
            "expected"
        )
    if path.is_dir():
        from export.given_towers.saved_models import SavedModelTower

        return SavedModelTower(path, not_finite)
    if path.suffix == ".npz":
        from export.given_towers.exported_graphs import ExportedGraphTower

        return ExportedGraphTower(path, not_finite)
    raise NotConvertible(
        f"tower {path} is of no form that is read; bring the directory of a SavedModel, or the "
        ".npz file that write_tower of scripts/torch_tower.py writes"
    )
