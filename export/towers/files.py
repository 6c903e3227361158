"""Writes towers and their parts as SavedModels for CPUs, and compiled for LiteRT where it can run
them.

Every part needs each form that its tower has; otherwise the tower is written without parts.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from bundle.format import manifest, paths
from bundle.format.manifest import Precision
from bundle.storage.staging import Staging
from export.front_end.interface import OriginalModel, TracedTower
from export.recipe.schema import ExportJob
from export.steps import LIBRARIES, Step, StepKey
from export.towers.bfloat16 import in_bfloat16
from export.towers.compiled import compile_tower
from export.towers.manifest_towers import describe_tower
from export.towers.parts import TracedPart
from export.towers.rewriting import Traced
from export.towers.savedmodels import content_of_saved_model, write_saved_model


@dataclass(frozen=True)
class TowerFiles:
    """Writes towers into a staged bundle.

    Attributes:
      stage: the version being written; files that it already finished are kept.
      original: the model that the towers were traced from.
      notes: receives notes for the user.
    """

    stage: Staging
    original: OriginalModel
    notes: list[str] = field(default_factory=list)

    def write(
        self, tower: TracedTower, parts: Sequence[TracedPart], job: ExportJob
    ) -> manifest.Tower:
        """Writes one tower and its parts; returns its manifest entry, before its forms are
        verified.

        Raises:
          CheckpointError: a weight is not in the checkpoint, or differs in shape or dtype.
          DestinationError: a file cannot be written.
          NotConvertible: the precision to be served has no form.
        """
        name = tower.spec.name
        precisions = job.towers[tower.spec.name].precisions
        forms = self._forms(tower, name, "", precisions)
        written: list[manifest.TowerPart] = []
        for part in parts:
            found = self._forms(part, name, part.spec.name, precisions)
            missing = sorted(_kinds(forms) - _kinds(found))
            if missing:
                shutil.rmtree(self.stage.directory / "towers" / name / "parts")
                self.notes.append(
                    f"tower {name!r} is not split: its part {part.spec.name!r} has no form "
                    f"{' '.join(missing[0])}, which the whole tower has"
                )
                written.clear()
                break
            written.append(part.spec.model_copy(update={"forms": found}))
        return describe_tower(tower.spec, job, forms, tuple(written))

    def _forms(
        self, traced: Traced, tower: str, part: str, precisions: Sequence[Precision]
    ) -> tuple[manifest.TowerForm, ...]:
        saved = self._saved(traced, tower, part, "f32")
        forms = [_form("saved_model", "f32", saved)]
        for precision in precisions:
            if precision == "bf16":
                half = self._saved(in_bfloat16(traced), tower, part, precision)
                forms.append(_form("saved_model", precision, half))
                continue
            path = paths.compiled_tower(tower, precision, part)
            directory = self.stage.directory
            lines: Mapping[str, str] = traced.lines if isinstance(traced, TracedTower) else {}
            make = partial(compile_tower, directory / saved, precision, directory / path, lines)
            key = StepKey(
                path,
                {"precision": precision},
                content=content_of_saved_model(directory / saved),
                libraries=LIBRARIES,
            )
            reason = Step(key, str, make).run(self.stage)
            if not reason:
                forms.append(_form("litert", precision, path))
            elif isinstance(traced, TracedTower):
                why = "; ".join(filter(None, (reason, traced.spec.half_cure)))
                self.notes.append(
                    f"tower {tower!r} is not compiled for LiteRT ({precision}): {why}"
                )
        return tuple(forms)

    def _saved(
        self, traced: TracedTower | TracedPart, tower: str, part: str, precision: Precision
    ) -> str:
        """Writes a SavedModel aside in every run (a few seconds): its content shows whether it
        changed.
        """
        path = paths.saved_model(tower, part, precision)
        fresh = self.stage.attempts / "saved_model"
        write_saved_model(traced, self.original, fresh)
        key = StepKey(path, content=content_of_saved_model(fresh))
        Step(key, type(None), partial(self._keep, fresh, path)).run(self.stage)
        shutil.rmtree(fresh, ignore_errors=True)
        return path

    def _keep(self, fresh: Path, path: str) -> None:
        directory = self.stage.directory / path
        shutil.rmtree(directory, ignore_errors=True)
        directory.parent.mkdir(parents=True, exist_ok=True)
        fresh.rename(directory)


def _form(
    kind: Literal["saved_model", "litert"], precision: Precision, path: str
) -> manifest.TowerForm:
    return manifest.TowerForm(kind=kind, precision=precision, path=path, max_abs_error={})


def _kinds(forms: Sequence[manifest.TowerForm]) -> set[tuple[str, str]]:
    return {(form.kind, form.precision) for form in forms}
