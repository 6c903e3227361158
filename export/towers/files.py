"""Writes every tower and part of one: as a SavedModel for CPUs, and compiled for LiteRT where that can run it.

A part without a form that its tower has would leave a service that runs that form nothing to run, so such a tower
keeps no parts.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bundle.format import paths
from bundle.format.manifest import Precision
from bundle.storage.staging import Staging
from export.checkpoint.reader import Checkpoint
from export.graph.pruning import TracedPart, TracedTower
from export.graph.specs import WrittenForm
from export.steps import content_of, key_of, versions
from export.towers.compiled import compile_tower
from export.towers.half_products import in_bfloat16
from export.towers.rewriting import Traced
from export.towers.savedmodels import write_saved_model


@dataclass(frozen=True)
class TowerFiles:
    """Where towers are written, and what of.

    Attributes:
      stage: the version being written; what it finished before is taken as it is.
      root: the model that they were traced from.
      checkpoint, object_path: the checkpoint, and where the model sits in it.
      notes: what the user should know is appended.
    """

    stage: Staging
    root: Any
    checkpoint: Checkpoint
    object_path: str
    notes: list[str] = field(default_factory=list)

    def write(
        self, tower: TracedTower, parts: Sequence[TracedPart], precisions: Sequence[Precision]
    ) -> list[WrittenForm]:
        """Writes one tower and its parts; returns the forms there are of each.

        Raises:
          CheckpointError: a weight is not in the checkpoint, or differs in shape or dtype.
          DestinationError: a file cannot be written.
          NotConvertible: what was written is not what the tower says.
        """
        name = tower.spec.name
        forms = self._forms(tower, name, "", precisions)
        of_parts = [self._forms(part, name, part.spec.name, precisions) for part in parts]
        wanted = {(form.kind, form.precision) for form in forms}
        for part, found in zip(parts, of_parts, strict=True):
            missing = sorted(wanted - {(form.kind, form.precision) for form in found})
            if missing:
                shutil.rmtree(self.stage.directory / "towers" / name / "parts")
                self.notes.append(
                    f"tower {name!r} is not split: its part {part.spec.name!r} has no form {' '.join(missing[0])}, "
                    "which the whole tower has"
                )
                return forms
        return forms + [form for found in of_parts for form in found]

    def _forms(self, cut: Traced, tower: str, part: str, precisions: Sequence[Precision]) -> list[WrittenForm]:
        saved = self._saved(cut, tower, part, "f32")
        forms = [WrittenForm(tower, "saved_model", "f32", saved, part)]
        for precision in precisions:
            if precision == "bf16":
                half = self._saved(in_bfloat16(cut), tower, part, precision)
                forms.append(WrittenForm(tower, "saved_model", precision, half, part))
                continue
            path = paths.compiled_tower(tower, precision, part)
            key = key_of(precision, _content(self.stage.directory / saved), versions())
            finished = self.stage.finished(path, key)
            if finished is None:
                reason = compile_tower(self.stage.directory / saved, precision, self.stage.directory / path).reason
                self.stage.finish(path, key, reason)
            else:
                reason = str(finished.payload)
            if not reason:
                forms.append(WrittenForm(tower, "litert", precision, path, part))
            elif isinstance(cut, TracedTower):
                self.notes.append(
                    f"tower {tower!r} is not compiled for LiteRT ({precision}): {reason}{cut.spec.half_cure}"
                )
        return forms

    def _saved(self, cut: TracedTower | TracedPart, tower: str, part: str, precision: Precision) -> str:
        """Writes a SavedModel aside in every run, which takes seconds: its content tells whether it is another one."""
        path, fresh = paths.saved_model(tower, part, precision), self.stage.attempts / "saved_model"
        write_saved_model(cut, self.root, self.checkpoint, self.object_path, fresh)
        key = key_of(_content(fresh))
        if self.stage.finished(path, key) is None:
            directory = self.stage.directory / path
            shutil.rmtree(directory, ignore_errors=True)
            directory.parent.mkdir(parents=True, exist_ok=True)
            fresh.rename(directory)
            self.stage.finish(path, key)
        shutil.rmtree(fresh, ignore_errors=True)
        return path


def _content(directory: Path) -> list[str]:
    return content_of(sorted(each for each in directory.rglob("*") if each.is_file()))
