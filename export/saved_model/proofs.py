"""Proves a self-contained SavedModel: loaded as a server loads it, in a process of its own, and asked raw examples.

Two loaders are asked, `tf.saved_model.load` and, in a session, `tf.compat.v1.saved_model.load`, which calls the same
restore operation that TensorFlow Serving does. Both hold every table in memory and check its crc. Where that much
memory is not to be had, the same graph is asked over the rows alone that the examples read.
"""

from __future__ import annotations

import gc
import multiprocessing
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.features.reader import FeatureReader
from bundle.format import manifest
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import Checkpoint
from export.errors import UsageError, VerificationFailed
from export.frameworks.loading import load_tensorflow
from export.graph.specs import SIGNATURE, DenseSpec, FeatureSpec, ModelSpec
from export.model.dense_copy import local_prefix
from export.model.manifest_features import model_vocabularies
from export.model.vocabularies import as_array, read_keys
from export.model.weights import restore_weights
from export.recipe.schema import ExportJob, HashRule
from export.saved_model.files import VariablesPlan
from export.saved_model.graph import InlineGraph, variable_key
from export.saved_model.lookups import sent_dtype
from export.tables.sources import source_of
from export.verify.examples import Examples
from export.verify.forms import TOLERANCE, allowed
from export.verify.model_checks import examples_of
from export.verify.reference_model import Reference, checkpoint_rows, finite_results

LOADERS = ("tf.saved_model.load", "tf.compat.v1.saved_model.load")
RESERVE_BYTES = 2 << 30
"""What a loading process holds beside the tables: TensorFlow itself, and room to spare."""

Tensors = dict[str, NDArray[Any]]
Results = dict[str, dict[str, NDArray[Any]]]
"""Signature -> output -> values."""


class KnownTable:
    """Stands for a table where only its number of rows is asked."""

    def __init__(self, rows: int, dim: int) -> None:
        self.rows, self.dim = rows, dim

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Returns zeros: nobody asks for values."""
        return np.zeros((rows.size, self.dim), np.float32)

    def bags(self, rows: NDArray[np.int64], offsets: NDArray[np.int64], *_: Any) -> NDArray[np.float32]:  # noqa: ARG002
        """Returns zeros: nobody asks for values."""
        return np.zeros((offsets.size - 1, self.dim), np.float32)

    def close(self) -> None:
        """Closes nothing."""


def prove(
    directory: Path, graph: InlineGraph, base: Path, checkpoint: Checkpoint, inventory: Inventory, plan: VariablesPlan
) -> dict[str, Any]:
    """Asks what was written raw examples, and holds its answers to those of the original model.

    Args:
      directory: of the SavedModel.
      graph, plan: what was written there.
      base: the recipe's folder.
      checkpoint, inventory: what was exported.
    Returns:
      What was compared, as JSON values.
    Raises:
      VerificationFailed: an answer differs, or a loader refuses the SavedModel.
      UsageError: the examples cannot be meant.
    """
    lookups, job, model = graph.lookups, graph.lookups.job, graph.lookups.traced.spec
    free = available_bytes()
    tables = {variable_key(attribute) for attribute in graph.tables}
    held = 2 * sum(entry.bytes for key, entry in plan.streamed.items() if key not in tables) + RESERVE_BYTES
    proof: dict[str, Any] = {"examples": 0, "tolerance": TOLERANCE, "loaded_by": [], "max_abs_error": {}}
    if held > free:
        note = f"not compared: the original model holds its large Keras Embeddings, {held} bytes, and {free} are free"
        return proof | {"note": f"{note}; the index holds the checkpoint's own entries"}
    features = _features(graph, base)
    read_rows = checkpoint_rows(
        checkpoint, {name: source_of(spec.layout, spec.key) for name, spec in lookups.tables.items()}
    )
    with tempfile.TemporaryDirectory() as aside:
        prefix = local_prefix(checkpoint, inventory, Path(aside))
        examples = examples_of(job, base, model, lookups.pages)
        reference, expected = finite_results(Reference(job, base, model, prefix, read_rows, examples, features))
    inputs = signature_inputs(graph, reference.examples, features)
    needed = plan.load_bytes + RESERVE_BYTES
    if needed <= free:
        answers, note = load_and_ask(directory, inputs), ""
        proof["loaded_by"] = list(answers)
    else:
        restore_weights(graph.weights.values(), lookups.traced.root, checkpoint, job.checkpoint.object_path)
        answers = {"the graph over the rows of the examples": _ask_rows(checkpoint, graph, inputs)}
        note = (
            f"not loaded here: that needs {needed} bytes of memory, {free} are free; the same graph answered over the "
            "rows that the examples read, and the index holds the checkpoint's own entries"
        )
    errors = {
        name: {output: _error(job, name, output, right, answers) for output, right in outputs.items()}
        for name, outputs in expected.items()
    }
    return proof | {"examples": reference.examples.n, "max_abs_error": errors, "note": note}


def _error(job: ExportJob, name: str, output: str, right: NDArray[Any], answers: Mapping[str, Results]) -> float:
    """Returns the largest difference of one output from the original model's, by whichever loader."""
    limit, largest = job.towers[name].max_abs_error.get("f32"), 0.0
    for how, results in answers.items():
        got, where = results[name][output], f"signature {name!r}, output {output!r}, by {how}"
        if got.shape != right.shape:
            raise VerificationFailed(f"{where}: shape {got.shape}; the original model gives {right.shape}")
        difference = np.abs(got.astype(np.float64) - right)
        wrong = ~(difference <= allowed(right, limit))  # not a number is wrong too
        if wrong.any():
            at = tuple(int(place) for place in np.argwhere(wrong)[0])
            raise VerificationFailed(
                f"{where}: example {at[0]} is {got[at]:.9g}, the original model gives {right[at]:.9g}; "
                f"{int(wrong.sum())} of {wrong.size} values break "
                f"{TOLERANCE if limit is None else f'towers.{name}.max_abs_error.f32 = {limit:g}'}: "
                "it would not answer as the model does, so nothing is published"
            )
        largest = max(largest, float(difference.max(initial=0.0)))
    return largest


def _features(graph: InlineGraph, base: Path) -> FeatureReader:
    """Returns the bundle's reader of features, which resolves ids as a service would; it reads no table here."""
    job = graph.lookups.job
    keys = {name: read_keys(base / part.file, part.dtype) for name, part in job.vocabularies.items()}
    keys |= {name: as_array(held) for name, held in model_vocabularies(graph.lookups.traced.spec).items()}
    tables = {name: cast(TableReader, KnownTable(spec.rows, spec.dim)) for name, spec in graph.lookups.tables.items()}
    vocabularies = {
        name: Vocabulary(IntegerKeys(values) if values.dtype == np.int64 else StringKeys(values.tolist()))
        for name, values in keys.items()
    }
    return FeatureReader(graph.lookups.pages, tables, vocabularies)


def signature_inputs(graph: InlineGraph, examples: Examples, features: FeatureReader) -> dict[str, Tensors]:
    """Returns examples as the tensors of each signature, as a caller would send them.

    Raises:
      UsageError: ids of the examples are not of the dtype that the signature takes.
    """
    job, model, pages = graph.lookups.job, graph.lookups.traced.spec, graph.lookups.pages
    sent: dict[str, tuple[NDArray[Any], NDArray[np.int64] | None]] = {}
    for name, readers in model.inputs.items():
        spec = next((each for each in readers if isinstance(each, FeatureSpec)), readers[0])
        if isinstance(spec, DenseSpec) and spec.take == "values":
            sent[name] = (features.activation(spec.name, examples.columns, examples.n).values, None)
            continue
        column = _column(name, spec, _default(name, spec, pages[spec.name]), examples)
        values, offsets, weights = column.values, column.offsets, column.weights
        assert offsets is not None  # noqa: S101 - _column gives them
        ids = _ids(name, values, sent_dtype(name, model, job), job)
        sent[name] = _filled(name, ids, offsets, model, job) if job.inputs[name].kind == "dense" else (ids, offsets)
        beside_ids = next((each.weights for each in readers if each.weights is not None), None)
        if beside_ids is not None:
            beside = np.ones(values.size, np.float32) if weights is None else weights.astype(np.float32)
            dense = job.inputs[beside_ids].kind == "dense"
            sent[beside_ids] = _filled(beside_ids, beside, offsets, model, job) if dense else (beside, offsets)
    return {
        signature: {
            tensor: value
            for name, tensors in inputs.items()
            for tensor, value in zip(tensors, _tensors(name, job, *sent[name], examples.n), strict=True)
        }
        for signature, inputs in graph.inputs.items()
        if signature != SIGNATURE
    }


def available_bytes() -> int:
    """Returns the memory that another process could take, as the machine and its control group tell."""
    found = [int(line.split()[1]) << 10 for line in _lines("/proc/meminfo") if line.startswith("MemAvailable:")]
    limit, used = (_lines(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if limit and used and limit[0].isdigit():
        found.append(int(limit[0]) - int(used[0]))
    return min(found, default=0)


def load_and_ask(directory: Path, inputs: Mapping[str, Tensors]) -> dict[str, Results]:
    """Loads a SavedModel by each loader in turn, in a process of its own, and asks every signature.

    Raises:
      VerificationFailed: a loader refuses it, or dies of it.
    """
    answers: dict[str, Results] = {}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tensorflow"]
    )  # imported once, however many are proved; what loads is a child of it
    with ProcessPoolExecutor(1, context) as process:
        for loader in LOADERS:
            try:
                answers[loader] = process.submit(_ask, loader, str(directory), dict(inputs)).result()
            except BrokenProcessPool as problem:
                raise VerificationFailed(
                    f"{loader} of {directory} died, as happens when memory runs out: a server needs as much"
                ) from problem
            except RuntimeError as problem:
                raise VerificationFailed(f"{loader} of {directory}: {problem}") from problem
    return answers


def _ask_rows(checkpoint: Checkpoint, graph: InlineGraph, inputs: Mapping[str, Tensors]) -> Results:
    """Runs the lookups and towers here, over the stored rows that the examples read, as they are asked for."""
    tf = load_tensorflow()

    def gather(table: str, rows: Any) -> Any:
        spec = graph.lookups.tables[table]
        wanted, place = np.unique(rows.numpy(), return_inverse=True)
        read = list(checkpoint.read_each(spec.key, [(int(row), 1) for row in wanted]))
        found = np.concatenate(read)[place.reshape(-1)] if read else checkpoint.read(spec.key, 0, 0)
        return tf.constant(found, tf.as_dtype(spec.dtype))

    lookups = replace(graph.lookups, gather=gather)
    results: Results = {}
    for tower in lookups.traced.towers:
        name = tower.spec.name
        values = {
            which: _composed(part.kind, [inputs[name][tensor] for tensor in graph.inputs[name][which]])
            for which, part in lookups.parts(tower).items()
        }
        results[name] = {which: value.numpy() for which, value in lookups.run(tower, values).items()}
    return results


def _composed(kind: str, tensors: list[NDArray[Any]]) -> Any:
    tf = load_tensorflow()
    if kind == "ragged":
        return tf.RaggedTensor.from_row_splits(*(tf.constant(each) for each in tensors))
    if kind == "sparse":
        return tf.SparseTensor(*(tf.constant(each) for each in tensors))
    return tf.constant(tensors[0])


def _ask(loader: str, directory: str, inputs: dict[str, Tensors]) -> Results:
    """Runs in the other process; whatever TensorFlow raises goes home as plain text."""
    tf = load_tensorflow()
    asked = _ask_functions if loader == "tf.saved_model.load" else _ask_session
    try:
        return asked(directory, inputs)
    except (tf.errors.OpError, OSError, ValueError, TypeError, KeyError, AssertionError, RuntimeError) as problem:
        raise RuntimeError(f"{type(problem).__name__}: {' '.join(str(problem).split())[:1000]}") from None
    finally:
        gc.collect()  # the next loader needs the memory of this one's tables


def _ask_functions(directory: str, inputs: dict[str, Tensors]) -> Results:
    tf = load_tensorflow()
    signatures = tf.saved_model.load(directory).signatures
    missing = {SIGNATURE, *inputs} ^ set(signatures)
    if missing:
        raise ValueError(f"signatures {sorted(signatures)}; {sorted(missing)} differ from what was written")
    results: Results = {}
    for name, tensors in inputs.items():
        answer = signatures[name](**{tensor: tf.constant(value) for tensor, value in tensors.items()})
        results[name] = {output: value.numpy() for output, value in answer.items()}
    return results


def _ask_session(directory: str, inputs: dict[str, Tensors]) -> Results:
    tf = load_tensorflow()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        page = tf.compat.v1.saved_model.load(session, ["serve"], directory)
        results: Results = {}
        for name, tensors in inputs.items():
            signature = page.signature_def[name]
            fed = {signature.inputs[tensor].name: value for tensor, value in tensors.items()}
            results[name] = session.run({output: info.name for output, info in signature.outputs.items()}, fed)
        return results


def _default(name: str, spec: FeatureSpec | DenseSpec, page: manifest.Feature) -> Any:
    """Returns what a client of the SavedModel must send for an input that an example leaves out."""
    if isinstance(page, manifest.EmbeddedFeature) and isinstance(page.ids, manifest.SeveralIds):
        return page.ids.keys[spec.reads.index(name)].default
    return page.default


def _column(name: str, spec: FeatureSpec | DenseSpec, default: Any, examples: Examples) -> Column:
    """Returns the ids of an input with offsets, defaults filled in."""
    column, n = examples.columns.get(name), examples.n
    if column is None:
        weights = None
        if isinstance(default, dict):
            default, weights = default["ids"], np.tile(np.asarray(default["weights"], np.float32), n)
        listed = default if isinstance(default, list) else [default]
        texts = any(isinstance(value, str) for value in listed)
        whole = np.tile(np.array(listed, object if texts else None), n)
        return Column(whole, np.arange(n + 1, dtype=np.int64) * len(listed), weights)
    offsets = column.offsets
    if offsets is None:
        offsets = np.arange(n + 1, dtype=np.int64) * (column.values.size // n)
    one_each = isinstance(spec, FeatureSpec) and spec.one_each and spec.place is None
    if one_each and default is not None and not (np.diff(offsets) == 1).all():
        values = np.repeat(np.array([default], column.values.dtype), n)
        values[np.diff(offsets) == 1] = column.values
        return Column(values, np.arange(n + 1, dtype=np.int64))
    return Column(column.values, offsets, column.weights)


def _ids(name: str, values: NDArray[Any], dtype: str, job: ExportJob) -> NDArray[Any]:
    if dtype == "string":
        return np.array([str(value) for value in values.tolist()], object)
    try:
        return values.astype(dtype)
    except ValueError as problem:
        hashed = name in job.features and isinstance(job.features[name].ids, HashRule)
        cure = f'; set features.{name}.ids.dtype = "string"' if hashed else ""
        raise UsageError(f"feature {name!r}: an example's id is no {dtype}: {problem}{cure}") from problem


def _filled(
    name: str, values: NDArray[Any], offsets: NDArray[np.int64], model: ModelSpec, job: ExportJob
) -> tuple[NDArray[Any], None]:
    """Returns the values of a dense input, with padding behind those of an example that has fewer."""
    size, n = int(np.prod(job.inputs[name].shape)), offsets.size - 1
    readers = [each for each in model.inputs.get(name, ()) if isinstance(each, FeatureSpec)]
    padding = next((each.padding_of(name) for each in readers if each.padding_of(name) is not None), 0)
    filled = np.full((n, size), "" if values.dtype == object and padding == 0 else padding, values.dtype)
    example = np.repeat(np.arange(n), np.diff(offsets))
    place = np.arange(values.size) - offsets[example]
    kept = place < size
    filled[example[kept], place[kept]] = values[kept]
    return filled, None


def _tensors(
    name: str, job: ExportJob, values: NDArray[Any], offsets: NDArray[np.int64] | None, n: int
) -> list[NDArray[Any]]:
    """Returns an input as TensorFlow flattens it: dense; values and row splits; indices, values and shape."""
    part = job.inputs[name]
    if offsets is None or part.kind == "dense":
        return [values.reshape(n, *part.shape)]
    if part.kind == "ragged":
        return [values, offsets]
    example = np.repeat(np.arange(n), np.diff(offsets))
    place = np.arange(values.size) - offsets[example]
    indices = np.stack([example, place], axis=1).astype(np.int64)
    return [indices, values, np.array([n, int(np.diff(offsets).max(initial=1))], np.int64)]


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
