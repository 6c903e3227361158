"""A tower in a file: of whatever form, it takes activations and returns outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from export.errors import NotConvertible, UsageError


class GivenTower(Protocol):
    """A tower in a file.

    Attributes:
      inputs: the TensorSpec of what it takes, with an open batch, by name: features, whose
        activations these are, and other inputs.
    """

    @property
    def inputs(self) -> Mapping[str, Any]: ...  # noqa: D102

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """Adds its operations to the graph that is being traced; computes at once outside of one.

        Args:
          inputs: at least the tensors of `inputs`, by their names.

        Returns:
          One tensor, or a dict of tensors.

        Raises:
          NotConvertible: it has no counterpart in TensorFlow.
        """


def open_tower(path: Path, not_finite: Collection[str] = ()) -> GivenTower:
    """Opens a tower: the directory of a SavedModel, or what `write_tower` of
    `scripts/torch_tower.py` wrote.

    Args:
      path: of the tower.
      not_finite: names of weights that may hold NaN or infinities.

    Raises:
      UsageError: there is no such file or directory.
      NotConvertible: it is of another form, damaged, or has no counterpart in TensorFlow; or a
        weight is not finite.
    """
    if not path.exists():
        raise UsageError(f"tower {path} does not exist; a SavedModel or an .npz file was expected")
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
