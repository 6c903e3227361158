"""Proves a self-contained SavedModel: loaded as a server loads it, in a process of its own, and asked raw examples.

Two loaders are asked, `tf.saved_model.load` and, in a session, `tf.compat.v1.saved_model.load`, which calls the same
restore operation that TensorFlow Serving does. Both hold every table in memory and check its crc. Where that much
memory is not to be had, the same graph is asked over the rows alone that the examples read (`ask_rows`).
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.features.reader import FeatureReader
from bundle.format import manifest
from export.checkpoint.inventory.specs import TableSpec
from export.checkpoint.reader import Checkpoint
from export.errors import UsageError, VerificationFailed
from export.frameworks.loading import load_tensorflow
from export.graph.specs import SIGNATURE, DenseSpec, FeatureSpec, ModelSpec
from export.recipe.schema import ExportJob, HashRule
from export.saved_model.graph import InlineGraph
from export.saved_model.lookups import Lookups, sent_dtype
from export.verify.examples import Examples

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


def signature_inputs(
    job: ExportJob,
    model: ModelSpec,
    pages: Mapping[str, manifest.Feature],
    graph: InlineGraph,
    examples: Examples,
    features: FeatureReader,
) -> dict[str, Tensors]:
    """Returns examples as the tensors of each signature, as a caller would send them.

    Raises:
      UsageError: ids of the examples are not of the dtype that the signature takes.
    """
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


def ask_rows(
    checkpoint: Checkpoint,
    tables: Mapping[str, TableSpec],
    build: Callable[[Callable[[str, Any], Any]], Lookups],
    towers: Mapping[str, Any],
    graph: InlineGraph,
    inputs: Mapping[str, Tensors],
) -> Results:
    """Runs the lookups and towers here, over the stored rows that the examples read, as they are asked for.

    Args:
      checkpoint: where rows are read.
      tables: where it stores each table.
      build: makes the lookups from what gathers stored rows.
      towers: by the names of their signatures, with their weights restored.
      graph: what was written.
      inputs: of each signature.
    """
    tf = load_tensorflow()

    def gather(table: str, rows: Any) -> Any:
        spec = tables[table]
        return tf.constant(stored_vectors(checkpoint, spec, rows.numpy()), tf.as_dtype(spec.dtype))

    lookups = build(gather)
    results: Results = {}
    for name, tower in towers.items():
        values = {}
        for which, part in lookups.parts(tower).items():
            tensors = [inputs[name][tensor] for tensor in graph.inputs[name][which]]
            values[which] = _composed(part.kind, tensors)
        results[name] = {which: value.numpy() for which, value in lookups.run(tower, values).items()}
    return results


def stored_vectors(checkpoint: Checkpoint, table: TableSpec, stored: NDArray[np.int64]) -> NDArray[Any]:
    """Returns [m, stored columns], in the stored dtype, for [m] rows of the variable that holds a table."""
    wanted, place = np.unique(stored, return_inverse=True)
    read = list(checkpoint.read_each(table.key, [(int(row), 1) for row in wanted]))
    return np.concatenate(read)[place.reshape(-1)] if read else checkpoint.read(table.key, 0, 0)


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
