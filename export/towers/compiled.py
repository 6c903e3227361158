"""Compiles SavedModels of towers for LiteRT: float32, or weights in int8 with dynamic ranges."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from bundle.format.manifest import Precision
from export.errors import DestinationError
from export.front_end.interface import TracedTower
from export.front_end.specs import SIGNATURE
from export.graphs.functions import fill
from export.graphs.loading import tf
from export.raised_errors import call_model, is_own
from export.towers.savedmodels import save_function
from export.user_lines import at_line

_REASON_CHARACTERS = 300
"""The maximum length of a reason of the converter: some contain a graph, and are cut."""
_NO_LINES: Mapping[str, str] = MappingProxyType({})
_TABLE_OPERATIONS = frozenset({"HashTableV2", "LookupTableImportV2"})
"""The operations of every lookup table, beside the operation that looks up."""
_MISSING = re.compile(
    r"^(?:Custom|Flex) ops: (?P<names>.*?)\s*$|'tf\.(?P<name>\w+)' (?:op\b|that was)",
    re.MULTILINE,
)
"""The lines of the converter that name operations which LiteRT lacks: several, or one."""
_LOCATED = re.compile(
    r'^\S+: error: loc\((?:callsite\()?(?:fused)?\["(?P<operation>\w+):".*\)\): (?P<text>.*?)\s*$',
    re.MULTILINE,
)
"""The line of the converter about one operation, between the lines of its callers."""


def compile_tower(
    saved_model: Path,
    precision: Precision,
    path: Path,
    lines: Mapping[str, str] = _NO_LINES,
    texts: Collection[str] = (),
) -> str:
    """Compiles one tower; its signature `serving_default` keeps the names of the SavedModel's.

    A tower with operations that LiteRT lacks is not an error: it keeps its SavedModel.

    Args:
      saved_model: The directory of the tower's SavedModel.
      precision: The precision: f32, or int8 (weights in int8, activations quantized by their range
        at run time).
      path: The file to write; it is not written if LiteRT cannot run the tower.
      lines: The user's line of each type of operation, for the reason.
      texts: The types of operations that read texts in the tower.
    Returns:
      The reason why LiteRT cannot run the tower; "" if it can.
    Raises:
      DestinationError: The file cannot be written.
    """
    try:
        flatbuffer = call_model(_converted, saved_model, precision)
        reason = call_model(_runtime_problem, flatbuffer)
    except Exception as problem:  # the converter raises many types of errors
        if is_own(problem):
            raise
        reason = _converter_problem(problem, lines, texts)
    if reason:
        return reason
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(flatbuffer)
    except OSError as problem:
        raise DestinationError(f"compiled tower {path} cannot be written: {problem}") from problem
    return ""


def reason_not_compiled(tower: TracedTower) -> str:
    """Returns why LiteRT cannot run a tower, before its weights are read; "" if it can."""
    with TemporaryDirectory(prefix="rowcast-") as directory:
        # Whether a tower converts depends on its operations, not on the values of its weights.
        fill(tower.variables)
        saved_model = Path(directory, "saved_model")
        save_function(tower, saved_model)
        path = Path(directory, "compiled.tflite")
        texts = text_operations(tower.function.graph)
        return compile_tower(saved_model, "f32", path, tower.lines, texts)


def text_operations(graph: Any) -> frozenset[str]:
    """Returns the types of the operations of a graph that read texts."""
    return frozenset(
        operation.type
        for operation in graph.get_operations()
        if any(tensor.dtype == tf.string for tensor in operation.inputs)
    )


def _converted(saved_model: Path, precision: str) -> bytes:
    converter = tf.lite.TFLiteConverter.from_saved_model(
        str(saved_model), signature_keys=[SIGNATURE]
    )
    if precision == "int8":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    flatbuffer: bytes = converter.convert()
    return flatbuffer


def _runtime_problem(flatbuffer: bytes) -> str:
    """Returns the failure of a tower that runs on batches of 1 and 3; "" if it runs. Some
    operations convert but fail when they run.
    """
    # Imported here, because only exports with towers need LiteRT.
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=flatbuffer, num_threads=1)
    runner = interpreter.get_signature_runner(SIGNATURE)
    input_details = runner.get_input_details()
    for details in input_details.values():
        if details["dtype"] in (np.bytes_, np.str_, object):
            return "it takes strings"
    signatures = [details["shape_signature"] for details in input_details.values()]
    is_batched = any(size < 0 for signature in signatures for size in signature[:1])
    for n in (1, 3) if is_batched else (1,):
        inputs = {}
        for name, details in input_details.items():
            # A size that is not fixed, such as the batch's, is -1.
            shape = [n if size < 0 else size for size in details["shape_signature"]]
            inputs[name] = np.ones(shape, details["dtype"])
        for name, values in runner(**inputs).items():
            if values.shape[:1] != (n,):
                return f"output {name!r} of a batch of {n} has shape {values.shape}"
    return ""


def _converter_problem(problem: Exception, lines: Mapping[str, str], texts: Collection[str]) -> str:
    """Returns the converter's reason, without its graph."""
    text = str(problem)
    missing = set[str]()
    for match in _MISSING.finditer(text):
        missing.update((match["names"] or match["name"]).split(", "))
    if not missing:
        return _first_problem(text, lines) or type(problem).__name__
    # For a lookup table, it is enough to name the operation that looks up.
    if "LookupTableFindV2" in missing:
        missing -= _TABLE_OPERATIONS

    # Some of those on texts, such as a concatenation, exist for numbers.
    kinds = {
        "operations on texts, such as": missing.intersection(texts),
        "operation": missing.difference(texts),
    }
    lacking = []
    for kind, names in kinds.items():
        located = [f"{name}{at_line(lines.get(name, ''))}" for name in sorted(names)]
        if located:
            lacking.append(f"{kind} {', '.join(located)}")
    return f"LiteRT has no {' and no '.join(lacking)}{_remedy(missing)}"


def _first_problem(text: str, lines: Mapping[str, str]) -> str:
    """Returns the error about an operation in the converter's text, or its first line."""
    located = _LOCATED.search(text)
    if located:
        line = at_line(lines.get(located["operation"], ""))
        reason = f"LiteRT's converter rejects {located['operation']}{line}: {located['text']}"
    else:
        reason = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return reason[:_REASON_CHARACTERS]


def _remedy(missing: set[str]) -> str:
    """Returns the remedy for operations that LiteRT lacks; "" if there is none."""
    if any(name.startswith("TensorList") for name in missing):
        return (
            ": recurrent layers of Keras are unrolled if inputs.NAME.shape states the number of "
            "steps and it is at most 512. Build longer ones with unroll=True in the factory, which "
            "reads the same checkpoint, and write other loops as loops of Python over a known "
            "number"
        )
    if any(name.startswith(("LookupTable", "String")) for name in missing):
        return (
            ": let the tower use what a known rule computes from one input (a vocabulary or a hash "
            "with a row for every id), or pass the result to the model as an input"
        )
    return ""
