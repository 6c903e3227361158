"""Compiles SavedModels of towers for LiteRT: float32, or weights in int8 with dynamic ranges."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from bundle.format.manifest import Precision
from export.errors import DestinationError
from export.front_end.interface import TracedTower
from export.front_end.specs import SIGNATURE
from export.graphs.functions import fill
from export.graphs.loading import tf
from export.towers.savedmodels import save_function
from export.user_lines import at_line

_REASON_CHARACTERS = 300
_NO_LINES: Mapping[str, str] = MappingProxyType({})
_TABLE_OPERATIONS = frozenset({"HashTableV2", "LookupTableImportV2"})
"""What every lookup table consists of, beside the operation that looks up."""
_MISSING = re.compile(
    r"^(?:Custom|Flex) ops: (.*?)\s*$|'tf\.(\w+)' (?:op\b|that was)", re.MULTILINE
)

_LOCATED = re.compile(
    r'^\S+: error: loc\((?:callsite\()?(?:fused)?\["(?P<operation>\w+):".*\)\): (?P<why>.*?)\s*$',
    re.MULTILINE,
)
"""What the converter says of one operation, between where it is called from."""


def compile_tower(
    saved_model: Path, precision: Precision, path: Path, lines: Mapping[str, str] = _NO_LINES
) -> str:
    """Compiles one tower; its signature `serving_default` keeps the names of the SavedModel's.

    A tower with operations that LiteRT lacks is not an error: it keeps its SavedModel.

    Args:
      saved_model: directory of the tower's SavedModel.
      precision: f32, or int8 (weights in int8, activations quantised by their range at run time).
      path: file to write; not written if LiteRT cannot run the tower.
      lines: The user's line of each type of operation, for the reason.
    Returns:
      Why LiteRT cannot run the tower; "" if it can.
    Raises:
      DestinationError: the file cannot be written.
    """
    try:
        converter = tf.lite.TFLiteConverter.from_saved_model(
            str(saved_model), signature_keys=[SIGNATURE]
        )
        if precision == "int8":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        flatbuffer = converter.convert()
        reason = _why_not_run(flatbuffer)
    except Exception as problem:  # noqa: BLE001 - the converter raises many types of errors
        reason = _why_not_compiled(problem, lines)
    if reason:
        return reason
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(flatbuffer)
    except OSError as problem:
        raise DestinationError(f"compiled tower {path} cannot be written: {problem}") from problem
    return ""


def why_not_compiled(tower: TracedTower) -> str:
    """Returns why LiteRT cannot run a tower, before its weights are read; "" if it can."""
    with TemporaryDirectory(prefix="rowcast-") as aside:
        fill(tower.variables)
        save_function(tower, Path(aside, "saved_model"))
        return compile_tower(
            Path(aside, "saved_model"), "f32", Path(aside, "compiled.tflite"), tower.lines
        )


def _why_not_run(flatbuffer: bytes) -> str:
    """Runs the tower on batches of 1 and 3, since some operations convert but fail when
    they run.
    """
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=flatbuffer, num_threads=1)
    runner = interpreter.get_signature_runner(SIGNATURE)
    if any(
        details["dtype"] in (np.bytes_, np.str_, object)
        for details in runner.get_input_details().values()
    ):
        return "it takes strings"
    for n in (1, 3):
        inputs = {
            name: np.ones(
                [n if size < 0 else size for size in details["shape_signature"]], details["dtype"]
            )
            for name, details in runner.get_input_details().items()
        }
        for name, values in runner(**inputs).items():
            if values.shape[:1] != (n,):
                return f"output {name!r} of a batch of {n} has shape {values.shape}"
    return ""


def _why_not_compiled(problem: Exception, lines: Mapping[str, str]) -> str:
    """Returns the converter's reason, without its graph."""
    text = str(problem)
    missing = {
        name for listed, one in _MISSING.findall(text) for name in (listed or one).split(", ")
    }
    if not missing:
        if located := _LOCATED.search(text):
            line = at_line(lines.get(located["operation"], ""))
            reason = f"LiteRT's converter rejects {located['operation']}{line}: {located['why']}"
            return reason[:_REASON_CHARACTERS]
        first = next((line.strip() for line in text.splitlines() if line.strip()), "")
        return (first or type(problem).__name__)[:_REASON_CHARACTERS]
    if "LookupTableFindV2" in missing:
        missing -= _TABLE_OPERATIONS

    named = [f"{name}{at_line(lines.get(name, ''))}" for name in sorted(missing)]
    return f"LiteRT has no operation {', '.join(named)}{_remedy(missing)}"


def _remedy(missing: set[str]) -> str:
    """Returns what to change in a model with operations that LiteRT lacks; "" if it is unknown."""
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
