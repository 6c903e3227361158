"""Proves a self-contained SavedModel: loads it as a server does, in a process of its own, and calls
it with raw examples.

Two loaders are tried, `tf.saved_model.load` and, in a session, `tf.compat.v1.saved_model.load`,
which calls the same restore operation that TensorFlow Serving does. Both hold every table in memory
and check its crc32c. Where the machine lacks that much memory, the same graph runs here, over only
those rows of the written files that the examples read.
"""

from __future__ import annotations

import gc
import multiprocessing
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
from export.bounds import TOLERANCE
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
from export.verify.examples import Examples
from export.verify.forms import largest_difference
from export.verify.original_results import original_results
from export.verify.reference_inputs import default_column
from export.verify.table_orders import check_table_orders

LOADERS = ("tf.saved_model.load", "tf.compat.v1.saved_model.load")
RESERVE_BYTES = 2 << 30
"""Memory of a loading process beyond its tables: TensorFlow itself, and room to spare."""

Requests = dict[str, Any]
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
    """Calls the written SavedModel with raw examples, and compares its results with those of the
    original model.

    Args:
      directory: The directory of the SavedModel.
      graph, plan: The graph and the variables that were written there.
      base: The recipe's folder.
      checkpoint, inventory: The checkpoint that was exported, and its inventory.
      unproved: Whether the comparison may be left out if the original model does not fit into
        memory.

    Returns:
      A description of the comparison, as JSON values.

    Raises:
      VerificationFailed: A result differs, a loader rejects the SavedModel, or the original model
        does not fit into memory.
      UsageError: The model cannot read the recipe's examples.
    """
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

    # The original model runs first: it decides which of the generated examples it can compute.
    features, examples, expected = _expected_results(graph, base, checkpoint, inventory)
    requests = _requests(graph, examples, features)

    needed_bytes, free_bytes = _needed_and_free_bytes(plan.load_bytes)
    if needed_bytes <= free_bytes:
        actual = _results_of_loaders(directory, _tensors_by_signature(graph, requests))
        proof["loaded_by"] = list(actual)
        note = ""
    else:
        graph.lookups.traced.original.restore_weights(graph.weights.values())
        written_checkpoint = open_checkpoint(plan.prefix)
        results = _results_of_rows(written_checkpoint, graph, requests)
        actual = {"the graph over the rows of the examples": results}
        note = (
            f"not loaded here: that needs {needed_bytes} bytes of memory, {free_bytes} are free; "
            "the same graph was run over the rows that the examples read in the written files"
        )

    errors = _largest_differences(graph.lookups.job, actual, expected)
    comparison = {"proved": True, "examples": examples.n, "max_abs_error": errors}
    return proof | comparison | {"note": note}


def _expected_results(
    graph: InlineGraph, base: Path, checkpoint: Checkpoint, inventory: Inventory
) -> tuple[FeatureReader, Examples, Results]:
    """Runs the original model on the recipe's examples, or on generated ones.

    Returns:
      A reader that resolves ids as a service would, the examples, and the original model's results
      for them.
    """
    lookups = graph.lookups
    with original_results(
        lookups.job, base, checkpoint, inventory, lookups.traced, lookups.entries
    ) as (reference, expected):
        check_table_orders(reference, expected)
    return reference.features, reference.examples, expected


def _largest_differences(
    job: ExportJob, actual: Mapping[str, Results], expected: Results
) -> dict[str, dict[str, float]]:
    """Returns the largest difference from the original model, by tower and output.

    Args:
      job: The recipe, which may limit the differences.
      actual: Results of the SavedModel, by the loader that read it.
      expected: Results of the original model.

    Raises:
      VerificationFailed: A difference is above its limit.
    """
    differences: dict[str, dict[str, float]] = {}
    for name, outputs in expected.items():
        limit = job.towers[name].max_abs_error.get("f32")
        key = f"towers.{name}.max_abs_error.f32"
        differences[name] = {}
        for output, expected_values in outputs.items():
            loader_differences = []
            for loader, results in actual.items():
                label = f"signature {name!r}, output {output!r}, by {loader}"
                values = results[name][output]
                loader_differences.append(
                    largest_difference(label, values, expected_values, limit, key)
                )
            differences[name][output] = max(loader_differences)
    return differences


def check_comparable(graph: InlineGraph, plan: VariablesPlan, unproved: bool) -> None:
    """Checks that this machine can run the original model, before tables are copied and again
    before they are proved.

    Args:
      graph, plan: The graph and the variables that are written.
      unproved: Whether the SavedModel may be published without a comparison.

    Raises:
      VerificationFailed: The machine cannot run the original model.
    """
    shortage = _shortage(graph, plan)
    if shortage and not unproved:
        raise VerificationFailed(
            f"the SavedModel cannot be compared with the original model: {shortage}; run the "
            "export where more memory is free, or publish it without a comparison by --unproved"
        )


def _shortage(graph: InlineGraph, plan: VariablesPlan) -> str:
    """Returns why the memory of this machine does not suffice for the original model; "" if it
    does.
    """
    # The original model reads rows of exported tables from the checkpoint. Only large variables
    # that are no tables fill its memory.
    weight_keys = plan.large.keys() - map(variable_key, graph.tables)
    needed_bytes, free_bytes = _needed_and_free_bytes(
        2 * sum(plan.large[key].bytes for key in weight_keys)
    )
    if needed_bytes <= free_bytes:
        return ""
    return (
        f"it holds its large Keras Embeddings, {needed_bytes} bytes, and {free_bytes} bytes are "
        "free"
    )


def _needed_and_free_bytes(variable_bytes: int) -> tuple[int, int]:
    """Returns the memory that a process needs which holds variables of this size, and the memory
    that is free.
    """
    return variable_bytes + RESERVE_BYTES, _available_bytes()


def _requests(graph: InlineGraph, examples: Examples, features: FeatureReader) -> Requests:
    """Returns the inputs of examples as a caller sends them, with the recipe's default where an
    example has no value.

    Raises:
      UsageError: Ids of the examples do not have the dtype of their signature.
    """
    job = graph.lookups.job
    model = graph.lookups.traced.spec
    n = examples.n
    requests: Requests = {}
    for name, readers in model.inputs.items():
        # All that read an input read the same tensor; a lookup decides how its ids are sent.
        spec = next((reader for reader in readers if isinstance(reader, FeatureSpec)), readers[0])
        if isinstance(spec, DenseSpec) and spec.entry.take == "values":
            requests[name] = tf.constant(features.activation(spec.name, examples.columns, n).values)
            continue

        length = features.length_of(name)
        column = examples.columns.get(name) or default_column(name, job, n, length)
        is_single = (
            isinstance(spec, FeatureSpec) and spec.entry.one_each and spec.entry.place is None
        )
        if is_single and name in job.features and job.features[name].default is not None:
            column = one_each(name, column, default_column(name, job, 1), n)
        section = job.inputs[name].model_copy(update={"dtype": sent_dtype(name, model, job)})
        ids = column._replace(values=_cast_ids(name, column.values, section.dtype, job))
        requests[name] = composed(name, section, ids, n, model.padding_of(name))

        weights_input = next(
            (reader.weights for reader in readers if reader.weights is not None), None
        )
        if weights_input is not None:
            # A signature has no optional input: an example without weights sends ones.
            weight_column = column._replace(values=np.ones(column.values.size))
            if column.weights is not None:
                weight_column = column._replace(values=column.weights)
            requests[weights_input] = composed(
                weights_input, job.inputs[weights_input], weight_column, n
            )
    return requests


def _tensors_by_signature(graph: InlineGraph, requests: Requests) -> dict[str, Tensors]:
    """Returns the inputs of each signature as TensorFlow flattens them, by the names of its
    tensors.
    """
    flat: dict[str, Tensors] = {}
    for signature, inputs in graph.inputs.items():
        # The default signature is one of the others, under a second name.
        if signature == SIGNATURE:
            continue
        flat[signature] = {}
        for name, tensor_names in inputs.items():
            tensors = tf.nest.flatten(requests[name], expand_composites=True)
            for tensor_name, tensor in zip(tensor_names, tensors, strict=True):
                flat[signature][tensor_name] = tensor.numpy()
    return flat


def _available_bytes() -> int:
    """Returns the memory that another process could allocate, according to the machine and its
    control group.
    """
    available = [
        int(line.split()[1]) << 10
        for line in _lines("/proc/meminfo")
        if line.startswith("MemAvailable:")
    ]
    # /proc/meminfo in a container reports the whole machine.
    limit, used = (_lines(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if limit and used and limit[0].isdigit():
        available.append(int(limit[0]) - int(used[0]))
    return min(available, default=0)


def _results_of_loaders(directory: Path, inputs: Mapping[str, Tensors]) -> dict[str, Results]:
    """Loads a SavedModel by each loader in turn, in a process of its own, and calls every
    signature.

    Raises:
      VerificationFailed: A loader rejects the SavedModel, or its process dies.
    """
    results: dict[str, Results] = {}
    context = multiprocessing.get_context("forkserver")
    # The server imports TensorFlow once, however many SavedModels are proved; the processes that
    # load them are forked from it.
    context.set_forkserver_preload(["tensorflow"])
    with ProcessPoolExecutor(1, context) as process:
        for loader in LOADERS:
            try:
                results[loader] = process.submit(
                    _call, loader, str(directory), dict(inputs)
                ).result()
            except BrokenProcessPool as problem:
                raise VerificationFailed(
                    f"{loader} of {directory} died, as happens when memory runs out: a server "
                    "needs as much"
                ) from problem
            except RuntimeError as problem:
                raise VerificationFailed(f"{loader} of {directory}: {problem}") from problem
    return results


def _results_of_rows(written: Checkpoint, graph: InlineGraph, requests: Requests) -> Results:
    """Runs the lookups and towers here, over the written rows that the examples read."""
    keys = {stored: variable_key(attribute) for attribute, stored in graph.tables.items()}

    def gather(table: str, rows: Any) -> Any:
        spec = graph.lookups.tables[table]
        key = keys[spec.key]
        # Each row is read once, however many examples have it.
        unique_rows, positions = np.unique(rows.numpy(), return_inverse=True)
        if unique_rows.size:
            read_rows = list(written.read_each(key, [(int(row), 1) for row in unique_rows]))
            values = np.concatenate(read_rows)[positions.reshape(-1)]
        else:
            values = written.read(key, 0, 0)
        return tf.constant(values, tf.as_dtype(spec.dtype))

    lookups = replace(graph.lookups, gather=gather)
    results: Results = {}
    for tower in lookups.traced.towers:
        inputs = {name: requests[name] for name in lookups.inputs_of(tower)}
        outputs = lookups.run(tower, inputs)
        results[tower.spec.name] = {name: values.numpy() for name, values in outputs.items()}
    return results


def _call(loader: str, directory: str, inputs: dict[str, Tensors]) -> Results:
    """Loads a SavedModel and calls its signatures, in the other process.

    Raises:
      RuntimeError: Whatever TensorFlow raised, as text: its own errors cannot be pickled.
    """
    call = _call_session
    if loader == "tf.saved_model.load":
        call = _call_functions
    try:
        return call(directory, inputs)
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
        # The next loader needs the memory of this loader's tables.
        gc.collect()


def _call_functions(directory: str, inputs: dict[str, Tensors]) -> Results:
    signatures = tf.saved_model.load(directory).signatures
    missing = {SIGNATURE, *inputs} ^ set(signatures)
    if missing:
        raise ValueError(
            f"signatures {sorted(signatures)}; {sorted(missing)} differ from what was written"
        )
    results: Results = {}
    for name, tensors in inputs.items():
        arguments = {tensor: tf.constant(value) for tensor, value in tensors.items()}
        outputs = signatures[name](**arguments)
        results[name] = {output: values.numpy() for output, values in outputs.items()}
    return results


def _call_session(directory: str, inputs: dict[str, Tensors]) -> Results:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], directory)
        results: Results = {}
        for name, tensors in inputs.items():
            signature = loaded.signature_def[name]
            feeds = {signature.inputs[tensor].name: value for tensor, value in tensors.items()}
            fetches = {output: info.name for output, info in signature.outputs.items()}
            results[name] = session.run(fetches, feeds)
        return results


def _cast_ids(name: str, values: NDArray[Any], dtype: str, job: ExportJob) -> NDArray[Any]:
    if dtype == "string":
        return values
    try:
        return values.astype(dtype)
    except ValueError as problem:
        cure = ""
        if name in job.features and isinstance(job.features[name].ids, HashRule):
            cure = f'; set features.{name}.ids.dtype = "string"'
        raise UsageError(
            f"feature {name!r}: an example's id is no {dtype}: {problem}{cure}"
        ) from problem


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
