"""Traces a model of gather_models.py, writes its bundle's parts and compares them with the original."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from rich.console import Console

from bundle.format import manifest
from bundle.format.manifest import TableSource
from export.checkpoint.reader import open_checkpoint
from export.frameworks.loading import load_tensorflow, tf
from export.jobs.progress import Progress
from export.jobs.saved_model_job import prepare_inline, run_inline
from export.model.code import load_factory
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from export.verify.examples import Examples
from export.verify.parity import check_towers
from export.verify.reference_inputs import Reference
from export.verify.reference_model import checkpoint_rows, reference_results
from tests.export import traced_models
from tests.export.traced_models import TracedCheckpoint, trace_checkpoint
from tests.export.written_towers import write_towers

HERE = Path(__file__).parent
NONE: Mapping[str, Any] = MappingProxyType({})
Beside = Callable[[Any], Mapping[str, Any]]
"""Returns what a training script saves beside a model."""


def recipe(
    function: str, inputs: Mapping[str, Any], outputs: Mapping[str, str] = NONE, **parts: Any
) -> ExportJob:
    tower = {
        "role": "query",
        "outputs": outputs,
        **({"result": next(iter(outputs))} if outputs else {}),
    }
    code = {"code": {"factory": f"gather_models.py:{function}"} | parts.pop("code", {})}
    return traced_models.recipe("", inputs, {"tower": tower}, code | parts)


def train(
    job: ExportJob, inputs: Mapping[str, Any], directory: Path, beside: Beside, seed: int = 7
) -> Path:
    """Builds the whole model by calling it, with random weights, saves it, and what a script saves beside it."""
    load_tensorflow()  # as the exporter needs it, before the model imports it
    model = load_factory(job.code.factory, HERE)()
    model(dict(inputs))
    random = np.random.default_rng(seed)
    for variable in model.variables if hasattr(model, "variables") else ():
        if "float" in str(variable.dtype):
            variable.assign(random.normal(0, 0.3, variable.shape).astype(np.float32))
    return Path(tf.train.Checkpoint(model=model, **beside(model)).write(str(directory / "ckpt")))


def train_and_trace(
    job: ExportJob,
    inputs: Mapping[str, Any],
    directory: Path,
    beside: Beside = lambda _: MappingProxyType({}),
) -> TracedCheckpoint:
    return trace_checkpoint(train(job, inputs, directory, beside), job, HERE, directory)


def check_parity(
    made: TracedCheckpoint, directory: Path, *examples: Examples
) -> dict[str, manifest.Tower]:
    """Writes every tower twice, and compares both with the original model on examples, and on those that are made."""
    checkpoint = open_checkpoint(made.prefix)
    read_rows = checkpoint_rows(
        checkpoint, {name: TableSource(layout="plain", key=key) for name, key in made.keys.items()}
    )
    written = write_towers(made.model, made.job, made.prefix, directory)
    assert all(len(tower.forms) == 2 for tower in written[1].values())
    for each in (*examples, made.examples()):
        reference = Reference(
            made.job, HERE, made.model.spec, made.prefix, read_rows, each, made.reader
        )
        checked = check_towers(reference, *written, reference_results(reference))
    return checked


def check_self_contained(
    made: TracedCheckpoint, directory: Path, examples: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Exports a self-contained SavedModel: two loaders run examples, compared with the original model."""
    updates: dict[str, Any] = {
        "checkpoint": made.job.checkpoint.model_copy(update={"path": str(made.prefix)}),
        "output": made.job.output.model_copy(
            update={"root": str(directory / "out"), "tables": "inline"}
        ),
    }
    if examples:
        (directory / "examples.jsonl").write_text(
            "".join(json.dumps(each) + "\n" for each in examples)
        )
        updates["verify"] = made.job.verify.model_copy(
            update={"examples": str(directory / "examples.jsonl")}
        )
    prepared = prepare_inline(made.job.model_copy(update=updates), HERE, ExportSettings())
    report = run_inline(prepared, ExportSettings(), Progress(Console(quiet=True)))
    assert report["verification"]["loaded_by"] == [
        "tf.saved_model.load",
        "tf.compat.v1.saved_model.load",
    ]
    return report
