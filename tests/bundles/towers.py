"""Towers of the linear model, which are copied into bundles. They are kept as an archive, so that
tests of the service need no TensorFlow, which has no release for every supported Python.

`python -m tests.bundles.towers` compiles them again, with TensorFlow: where the weights or shapes
of tests/models/linear.py change.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from pathlib import Path

from bundle.format import paths
from bundle.format.manifest import Tower, TowerForm, TowerInput, TowerOutput, TowerPart
from tests.models import linear

ARCHIVE = Path(__file__).with_name("linear_towers.tar.xz")


def compiled_towers(directory: Path) -> Path:
    """Unpacks the towers of every edition.

    Returns:
      `directory`, which holds them.
    """
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(directory, filter="data")
    return directory


def write_tower(directory: Path, edition: Path, name: str, *, saved_model_only: bool) -> Tower:
    """Copies a tower into a bundle.

    Args:
      directory: The directory of the bundle.
      edition: The compiled towers of one edition.
      name: The name of the tower.
      saved_model_only: Leaves out the compiled form.
    """
    outputs = linear.OUTPUTS[name]
    max_abs_error = dict.fromkeys(outputs, 0.0)

    saved_model = paths.saved_model(name)
    shutil.copytree(edition / name / "saved_model", directory / saved_model)
    forms = [
        TowerForm(
            kind="saved_model", precision="f32", path=saved_model, max_abs_error=max_abs_error
        )
    ]
    if not saved_model_only:
        compiled = paths.compiled_tower(name, "f32")
        shutil.copyfile(edition / name / "compiled-f32.tflite", directory / compiled)
        forms.append(
            TowerForm(kind="litert", precision="f32", path=compiled, max_abs_error=max_abs_error)
        )

    output_shape = (None,) if name == "ranking" else (None, linear.DIM)
    return Tower(
        role=linear.ROLES[name],
        inputs=tuple(
            TowerInput(name=feature, feature=feature, dtype="float32", shape=(None, *shape))
            for feature, shape in linear.INPUTS[name].items()
        ),
        outputs=tuple(
            TowerOutput(name=output, dtype="float32", shape=output_shape) for output in outputs
        ),
        result=outputs[0],
        forms=tuple(forms),
    )


def write_tower_parts(directory: Path, edition: Path) -> tuple[TowerPart, ...]:
    """Copies the parts of the ranking tower into a bundle."""
    return tuple(_write_part(directory, edition, name) for name in linear.PARTS)


def _write_part(directory: Path, edition: Path, name: str) -> TowerPart:
    file = paths.compiled_tower("ranking", "f32", name)
    (directory / file).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(edition / "ranking/parts" / name / "compiled-f32.tflite", directory / file)

    per, features, _ = linear.PARTS[name]
    inputs = []
    for tensor, shape in linear.part_inputs(name).items():
        packed = tensor == "packed"
        inputs.append(
            TowerInput(
                name=tensor,
                features=features if packed else (),
                tensor="" if packed else tensor,
                dtype="float32",
                shape=(None, *shape),
            )
        )
    output_shape = (None, 3) if name in {"context", "trunk"} else (None,)
    form = TowerForm(kind="litert", precision="f32", path=file, max_abs_error={name: 0.0})
    return TowerPart(
        name=name,
        per="context" if per == "context" else "candidate",
        inputs=tuple(inputs),
        outputs=(TowerOutput(name=name, dtype="float32", shape=output_shape),),
        forms=(form,),
    )


def main() -> None:
    """Writes the archive."""
    with tempfile.TemporaryDirectory() as scratch:
        linear.compile_towers(Path(scratch))
        with tarfile.open(ARCHIVE, "w:xz", preset=9) as tar:
            tar.add(scratch, "")


if __name__ == "__main__":
    main()
