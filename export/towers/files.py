"""Writes towers and their parts as SavedModels for CPUs, and compiled for LiteRT where it can run
them.

Every part needs each form that its tower has; otherwise the tower is written without parts.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bundle.format import manifest, paths
from bundle.format.manifest import Precision
from bundle.storage.staging import Staging
from export.front_end.interface import OriginalModel, TracedTower
from export.recipe.schema import ExportJob
from export.steps import LIBRARIES, Step
from export.towers.bfloat16 import in_bfloat16
from export.towers.compiled import compile_tower, text_operations
from export.towers.division import Split
from export.towers.manifest_towers import describe_tower
from export.towers.parts import TracedPart
from export.towers.rewriting import Traced
from export.towers.savedmodels import content_of_saved_model, write_saved_model


@dataclass(frozen=True)
class TowerFiles:
    """Writes towers into a staged bundle.

    Attributes:
      stage: The version being written; files that an earlier run finished are kept.
      original: The model that the towers were traced from.
      notes: The list to which notes for the user are added.
    """

    stage: Staging
    original: OriginalModel
    notes: list[str] = field(default_factory=list)

    def write(self, tower: TracedTower, split: Split, job: ExportJob) -> manifest.Tower:
        """Writes one tower and its parts; returns its manifest entry, before its forms are
        verified.

        Raises:
          CheckpointError: A weight is not in the checkpoint, or differs in shape or dtype.
          DestinationError: A file cannot be written.
          NotConvertible: The precision to be served has no form.
        """
        name = tower.spec.name
        precisions = job.towers[tower.spec.name].precisions
        forms = self._forms(tower, name, "", precisions)
        entries: list[manifest.TowerPart] = []
        for part in split.parts:
            part_forms = self._forms(part, name, part.spec.name, precisions)
            missing = sorted(_kinds(forms) - _kinds(part_forms))
            if missing:
                # The other parts alone compute no output, so their files go as well.
                shutil.rmtree(self.stage.directory / "towers" / name / "parts")
                self.notes.append(
                    f"tower {name!r} is not split: its part {part.spec.name!r} has no form "
                    f"{' '.join(missing[0])}, which the whole tower has"
                )
                entries.clear()
                break
            entries.append(part.spec.model_copy(update={"forms": part_forms}))
        extension = None
        if split.extension is not None and entries:
            part = split.extension.part
            part_forms = self._forms(part, name, part.spec.name, precisions)
            for kind, precision in sorted(_kinds(forms) - _kinds(part_forms)):
                self.notes.append(
                    f"tower {name!r}: a service that runs {kind} {precision} stores no states of "
                    f"contexts between requests: part {part.spec.name!r} has no such form"
                )
            written = part.spec.model_copy(update={"forms": part_forms})
            extension = split.extension.entry(written)
        return describe_tower(tower.spec, job, forms, tuple(entries), extension)

    def _forms(
        self, traced: Traced, tower: str, part: str, precisions: Sequence[Precision]
    ) -> tuple[manifest.TowerForm, ...]:
        """Writes the forms of a tower, or of a part of one; returns their entries."""
        saved_model = self._write_saved_model(traced, tower, part, "f32")
        forms = [_form("saved_model", "f32", saved_model)]
        for precision in precisions:
            if precision == "bf16":
                # A SavedModel of its own, which only hosts with TensorFlow can run.
                path = self._write_saved_model(in_bfloat16(traced), tower, part, precision)
                forms.append(_form("saved_model", precision, path))
                continue
            path = paths.compiled_tower(tower, precision, part)
            reason = self._compile(traced, saved_model, precision, path)
            if not reason:
                forms.append(_form("litert", precision, path))
            elif isinstance(traced, TracedTower):
                full_reason = "; ".join(filter(None, (reason, traced.spec.half_cure)))
                self.notes.append(
                    f"tower {tower!r} is not compiled for LiteRT ({precision}): {full_reason}"
                )
        return tuple(forms)

    def _compile(self, traced: Traced, saved_model: str, precision: Precision, path: str) -> str:
        """Compiles a SavedModel of the bundle, unless an earlier run did.

        Returns:
          The reason why LiteRT cannot run it; "" if it can.
        """
        lines: Mapping[str, str] = {}
        texts: frozenset[str] = frozenset()
        if isinstance(traced, TracedTower):
            lines = traced.lines
            texts = text_operations(traced.function.graph)
        source = _SavedModel(self.stage.directory / saved_model)
        step = Step(path, LIBRARIES)
        return step.run(self.stage, _write_compiled, path, source, precision, lines, texts)

    def _write_saved_model(
        self, traced: TracedTower | TracedPart, tower: str, part: str, precision: Precision
    ) -> str:
        """Writes a SavedModel into the bundle; returns its path there."""
        path = paths.saved_model(tower, part, precision)
        # It is written aside in every run, which takes a few seconds: its content shows whether it
        # changed.
        attempt = self.stage.attempts / "saved_model"
        write_saved_model(traced, self.original, attempt)
        Step(path).run(self.stage, _move, path, _SavedModel(attempt))
        shutil.rmtree(attempt, ignore_errors=True)
        return path


@dataclass(frozen=True)
class _SavedModel:
    """A directory with a SavedModel."""

    directory: Path

    def key_parts(self) -> Any:
        """Returns what is the same in each run that writes this model."""
        return content_of_saved_model(self.directory)


def _move(base: Path, path: str, attempt: _SavedModel) -> None:
    """Moves a SavedModel to its path in a bundle."""
    directory = base / path
    shutil.rmtree(directory, ignore_errors=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    attempt.directory.rename(directory)


def _write_compiled(
    base: Path,
    path: str,
    saved_model: _SavedModel,
    precision: Precision,
    lines: Mapping[str, str],
    texts: Collection[str],
) -> str:
    """Compiles a SavedModel to a path of a bundle; see `compile_tower`."""
    return compile_tower(saved_model.directory, precision, base / path, lines, texts)


def _form(
    kind: Literal["saved_model", "litert"], precision: Precision, path: str
) -> manifest.TowerForm:
    return manifest.TowerForm(kind=kind, precision=precision, path=path, max_abs_error={})


def _kinds(forms: Sequence[manifest.TowerForm]) -> set[tuple[str, str]]:
    return {(form.kind, form.precision) for form in forms}
