"""Opens the form of a tower that a bundle holds: compiled, or a SavedModel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bundle.format import manifest
from bundle.storage import files
from runtime.errors import TowerUnreadable
from runtime.litert import CompiledTower
from runtime.savedmodel import DEVICES, SavedModelTower
from runtime.tower import Device, Tensor, Tower, shape_text


def open_tower(
    root: Path, tower: manifest.Tower, precision: manifest.Precision | None = None
) -> Tower:
    """Opens the best form of a tower: compiled if there is one of the precision, else the
    SavedModel.

    Args:
      root: directory of the bundle.
      tower: its entry in the manifest.
      precision: None takes the one that the manifest serves.
    Raises:
      TowerUnreadable: there is no such form; otherwise as `open_form`.
    """
    wanted = precision or tower.serve
    form = find_form(tower.forms, ("litert", wanted), ("saved_model", wanted))
    if form is None:
        known = ", ".join(sorted(f"{form.kind} {form.precision}" for form in tower.forms)) or "none"
        raise TowerUnreadable(
            f"no form of precision {wanted!r} was exported for this tower; forms: {known}"
        )
    return open_form(root, tower, form)


def find_form(
    forms: Sequence[manifest.TowerForm], *wanted: tuple[str, manifest.Precision]
) -> manifest.TowerForm | None:
    """Returns the first of the wanted kinds and precisions that exists; None: none of them does."""
    found = {(form.kind, form.precision): form for form in forms}
    return next((found[each] for each in wanted if each in found), None)


def open_form(
    root: Path,
    entry: manifest.Tower | manifest.TowerPart,
    form: manifest.TowerForm,
    device: Device = "cpu",
) -> Tower:
    """Opens one form of a tower, or of a part of one.

    Args:
      root: directory of the bundle.
      entry: the tower's or part's in the manifest.
      form: which of its forms.
      device: where a SavedModel runs; compiled forms run on the CPU.
    Raises:
      TowerUnreadable: it is damaged, or its inputs and outputs are not the manifest's.
      DigestMismatch, UnsafePath: its file is missing, or lies outside the bundle.
      LibraryMissing: it is a SavedModel, and TensorFlow is not installed.
    """
    opened: Tower
    if form.kind == "litert":
        opened = CompiledTower(files.locate(root, form.path))
    else:
        opened = SavedModelTower(files.locate(root, form.path), DEVICES[device])
    _check_tensors("input", opened.inputs, entry.inputs)
    _check_tensors("output", opened.outputs, entry.outputs)
    return opened


def _check_tensors(
    kind: str, found: Sequence[Tensor], listed: Sequence[manifest.TowerInput | manifest.TowerOutput]
) -> None:
    expected = {tensor.name: tensor for tensor in listed}
    if {tensor.name for tensor in found} != set(expected):
        raise TowerUnreadable(
            f"the tower has {kind}s {sorted(tensor.name for tensor in found)}, the manifest says "
            f"{sorted(expected)}"
        )
    for tensor in found:
        entry = expected[tensor.name]
        # A compiled output may know less of its shape than the manifest; a size that is known must
        # be the same one.
        same = len(tensor.shape) == len(entry.shape) and all(
            have in (None, size) or size is None
            for have, size in zip(tensor.shape, entry.shape, strict=True)
        )
        if tensor.dtype != entry.dtype or not same:
            raise TowerUnreadable(
                f"{kind} {tensor.name!r} is {tensor.dtype} {shape_text(tensor.shape)}, "
                f"the manifest says {entry.dtype} {shape_text(entry.shape)}"
            )
