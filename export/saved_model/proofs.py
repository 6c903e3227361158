"""Proves a self-contained SavedModel: loaded as a server loads it, in a process of its own, and
asked raw examples.

Two loaders are asked, `tf.saved_model.load` and, in a session, `tf.compat.v1.saved_model.load`,
which calls the same restore operation that TensorFlow Serving does. Both hold every table in memory
and check its crc. Where that much memory is not to be had, the same graph is asked over the rows
alone that the examples read in the written files.
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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import one_each
from bundle.features.reader import FeatureReader
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.errors import UsageError, VerificationFailed
from export.front_end.interface import Results
from export.front_end.specs import SIGNATURE, DenseSpec, FeatureSpec
from export.graphs.loading import tf
from export.graphs.tensors import composed
from export.recipe.schema import ExportJob, HashRule
from export.saved_model.files import VariablesPlan
from export.saved_model.graph import InlineGraph, variable_key
from export.saved_model.lookups import sent_dtype
from export.tables.sources import source_of
from export.verify.examples import Examples
from export.verify.forms import TOLERANCE, largest_difference
from export.verify.made_examples import vocabulary_of
from export.verify.recipe_examples import examples_of, keys_of
from export.verify.reference_inputs import Reference, default_column
from export.verify.reference_model import checkpoint_rows, finite_results
from export.verify.table_effects import TrainedRows

LOADERS = ("tf.saved_model.load", "tf.compat.v1.saved_model.load")
RESERVE_BYTES = 2 << 30
"""What a loading process holds beside the tables: TensorFlow itself, and room to spare."""

Sent = dict[str, Any]
"""Input of the recipe -> the tensor that a caller sends: dense, ragged or sparse."""
Tensors = dict[str, NDArray[Any]]


def prove(
    directory: Path,
    graph: InlineGraph,
    base: Path,
    checkpoint: Checkpoint,
    inventory: Inventory,
    plan: VariablesPlan,
    unproved: bool = False,
) -> dict[str, Any]:
    """Asks what was written raw examples, and holds its answers to those of the original model.

    Args:
      directory: of the SavedModel.
      graph, plan: what was written there.
      base: the recipe's folder.
      checkpoint, inventory: what was exported.
      unproved: whether nothing need be compared if the original model does not fit into memory.
    Returns:
      What was compared, as JSON values.
    Raises:
      VerificationFailed: an answer differs, a loader rejects the SavedModel, or the original model
        does not fit into memory.
      UsageError: the examples cannot be meant.
    """
    lookups = graph.lookups
    job = graph.lookups.job
    model = graph.lookups.traced.spec
    proof: dict[str, Any] = {
        "proved": False,
        "examples": 0,
        "tolerance": TOLERANCE,
        "loaded_by": [],
        "max_abs_error": {},
    }
    shortage = _shortage(graph, plan)
    if shortage:
        check_comparable(graph, plan, unproved)
        note = f"not compared with the original model, by --unproved: {shortage}"
        return proof | {"note": f"{note}; the index holds the checkpoint's own entries"}
    sources = {name: source_of(spec.layout, spec.key) for name, spec in lookups.tables.items()}
    read_rows = checkpoint_rows(checkpoint, sources)
    tables = {name: TrainedRows(name, spec, read_rows) for name, spec in lookups.tables.items()}
    vocabularies = {name: vocabulary_of(keys) for name, keys in keys_of(job, base, model).items()}
    # Resolves ids as a service would.
    features = FeatureReader(lookups.entries, tables, vocabularies)
    with tempfile.TemporaryDirectory() as aside:
        original = lookups.traced.original.reference(inventory, Path(aside))
        examples = examples_of(job, base, model, lookups.entries)
        reference, expected = finite_results(
            Reference(job, base, model, original, read_rows, examples, features)
        )
    sent = _sent(graph, reference.examples, features)
    needed, free = _needed_and_free(plan.load_bytes)
    if needed <= free:
        answers = _load_and_ask(directory, _flat(graph, sent))
        note = ""
        proof["loaded_by"] = list(answers)
    else:
        lookups.traced.original.restore_weights(graph.weights.values())
        written = open_checkpoint(plan.prefix)
        answers = {"the graph over the rows of the examples": _ask_rows(written, graph, sent)}
        note = (
            f"not loaded here: that needs {needed} bytes of memory, {free} are free; the same "
            "graph answered over the rows that the examples read in the written files"
        )
    errors: dict[str, dict[str, float]] = {}
    for name, outputs in expected.items():
        limit = job.towers[name].max_abs_error.get("f32")
        key = f"towers.{name}.max_abs_error.f32"
        errors[name] = {
            output: max(
                largest_difference(
                    f"signature {name!r}, output {output!r}, by {how}",
                    results[name][output],
                    right,
                    limit,
                    key,
                )
                for how, results in answers.items()
            )
            for output, right in outputs.items()
        }
    compared = {"proved": True, "examples": reference.examples.n, "max_abs_error": errors}
    return proof | compared | {"note": note}


def check_comparable(graph: InlineGraph, plan: VariablesPlan, unproved: bool) -> None:
    """Checks that this machine can run the original model, before tables are copied and again
    before they are proved.

    Args:
      graph, plan: what is written.
      unproved: whether the SavedModel may be published without a comparison.

    Raises:
      VerificationFailed: it cannot.
    """
    shortage = _shortage(graph, plan)
    if shortage and not unproved:
        raise VerificationFailed(
            f"the SavedModel cannot be compared with the original model: {shortage}; run the "
            "export where more memory is free, or publish it without a comparison by --unproved"
        )


def _shortage(graph: InlineGraph, plan: VariablesPlan) -> str:
    """Returns what the original model lacks to run here; "" if nothing."""
    own = plan.large.keys() - map(variable_key, graph.tables)
    needed, free = _needed_and_free(2 * sum(plan.large[key].bytes for key in own))
    if needed <= free:
        return ""
    return f"it holds its large Keras Embeddings, {needed} bytes, and {free} bytes are free"


def _needed_and_free(held: int) -> tuple[int, int]:
    """Returns what a process that holds so many bytes of variables needs, and what is free."""
    return held + RESERVE_BYTES, _available_bytes()


def _sent(graph: InlineGraph, examples: Examples, features: FeatureReader) -> Sent:
    """Returns the inputs of examples as a caller sends them, with the recipe's default where one is
    left out.

    Raises:
      UsageError: ids of the examples are not of the dtype that a signature takes.
    """
    job = graph.lookups.job
    model = graph.lookups.traced.spec
    n = examples.n
    sent: Sent = {}
    for name, readers in model.inputs.items():
        spec = next((each for each in readers if isinstance(each, FeatureSpec)), readers[0])
        if isinstance(spec, DenseSpec) and spec.entry.take == "values":
            sent[name] = tf.constant(features.activation(spec.name, examples.columns, n).values)
            continue
        length = features.length_of(name)
        column = examples.columns.get(name) or default_column(name, job, n, length)
        single = isinstance(spec, FeatureSpec) and spec.entry.one_each and spec.entry.place is None
        if single and name in job.features and job.features[name].default is not None:
            column = one_each(name, column, default_column(name, job, 1), n)
        part = job.inputs[name].model_copy(update={"dtype": sent_dtype(name, model, job)})
        ids = column._replace(values=_ids(name, column.values, part.dtype, job))
        sent[name] = composed(name, part, ids, n, model.padding_of(name))
        beside = next((each.weights for each in readers if each.weights is not None), None)
        if beside is not None:
            weights = np.ones(column.values.size) if column.weights is None else column.weights
            sent[beside] = composed(beside, job.inputs[beside], column._replace(values=weights), n)
    return sent


def _flat(graph: InlineGraph, sent: Sent) -> dict[str, Tensors]:
    """Returns the inputs of each signature as TensorFlow flattens them, by the names of its
    tensors.
    """
    return {
        signature: {
            tensor: part.numpy()
            for name, tensors in inputs.items()
            for tensor, part in zip(
                tensors, tf.nest.flatten(sent[name], expand_composites=True), strict=True
            )
        }
        for signature, inputs in graph.inputs.items()
        if signature != SIGNATURE
    }


def _available_bytes() -> int:
    """Returns the memory that another process could take, as the machine and its control group
    tell.
    """
    found = [
        int(line.split()[1]) << 10
        for line in _lines("/proc/meminfo")
        if line.startswith("MemAvailable:")
    ]
    limit, used = (_lines(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if limit and used and limit[0].isdigit():
        found.append(int(limit[0]) - int(used[0]))
    return min(found, default=0)


def _load_and_ask(directory: Path, inputs: Mapping[str, Tensors]) -> dict[str, Results]:
    """Loads a SavedModel by each loader in turn, in a process of its own, and asks every signature.

    Raises:
      VerificationFailed: a loader rejects it, or dies of it.
    """
    answers: dict[str, Results] = {}
    context = multiprocessing.get_context("forkserver")
    # Imported once, however many are proved; what loads is a child of it.
    context.set_forkserver_preload(["tensorflow"])
    with ProcessPoolExecutor(1, context) as process:
        for loader in LOADERS:
            try:
                answers[loader] = process.submit(
                    _ask, loader, str(directory), dict(inputs)
                ).result()
            except BrokenProcessPool as problem:
                raise VerificationFailed(
                    f"{loader} of {directory} died, as happens when memory runs out: a server "
                    "needs as much"
                ) from problem
            except RuntimeError as problem:
                raise VerificationFailed(f"{loader} of {directory}: {problem}") from problem
    return answers


def _ask_rows(written: Checkpoint, graph: InlineGraph, sent: Sent) -> Results:
    """Runs the lookups and towers here, over the written rows that the examples read, as they are
    asked for.
    """
    keys = {stored: variable_key(attribute) for attribute, stored in graph.tables.items()}

    def gather(table: str, rows: Any) -> Any:
        spec = graph.lookups.tables[table]
        key = keys[spec.key]
        wanted, place = np.unique(rows.numpy(), return_inverse=True)
        read = list(written.read_each(key, [(int(row), 1) for row in wanted]))
        found = np.concatenate(read)[place.reshape(-1)] if read else written.read(key, 0, 0)
        return tf.constant(found, tf.as_dtype(spec.dtype))

    lookups = replace(graph.lookups, gather=gather)
    results: Results = {}
    for tower in lookups.traced.towers:
        found = lookups.run(tower, {name: sent[name] for name in lookups.parts(tower)})
        results[tower.spec.name] = {output: value.numpy() for output, value in found.items()}
    return results


def _ask(loader: str, directory: str, inputs: dict[str, Tensors]) -> Results:
    """Runs in the other process; whatever TensorFlow raises goes home as plain text."""
    asked = _ask_functions if loader == "tf.saved_model.load" else _ask_session
    try:
        return asked(directory, inputs)
    except (
        tf.errors.OpError,
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AssertionError,
        RuntimeError,
    ) as problem:
        raise RuntimeError(
            f"{type(problem).__name__}: {' '.join(str(problem).split())[:1000]}"
        ) from None
    finally:
        gc.collect()  # the next loader needs the memory of this one's tables


def _ask_functions(directory: str, inputs: dict[str, Tensors]) -> Results:
    signatures = tf.saved_model.load(directory).signatures
    missing = {SIGNATURE, *inputs} ^ set(signatures)
    if missing:
        raise ValueError(
            f"signatures {sorted(signatures)}; {sorted(missing)} differ from what was written"
        )
    results: Results = {}
    for name, tensors in inputs.items():
        answer = signatures[name](
            **{tensor: tf.constant(value) for tensor, value in tensors.items()}
        )
        results[name] = {output: value.numpy() for output, value in answer.items()}
    return results


def _ask_session(directory: str, inputs: dict[str, Tensors]) -> Results:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], directory)
        results: Results = {}
        for name, tensors in inputs.items():
            signature = loaded.signature_def[name]
            fed = {signature.inputs[tensor].name: value for tensor, value in tensors.items()}
            results[name] = session.run(
                {output: info.name for output, info in signature.outputs.items()}, fed
            )
        return results


def _ids(name: str, values: NDArray[Any], dtype: str, job: ExportJob) -> NDArray[Any]:
    try:
        return values if dtype == "string" else values.astype(dtype)
    except ValueError as problem:
        hashed = name in job.features and isinstance(job.features[name].ids, HashRule)
        cure = f'; set features.{name}.ids.dtype = "string"' if hashed else ""
        raise UsageError(
            f"feature {name!r}: an example's id is no {dtype}: {problem}{cure}"
        ) from problem


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
