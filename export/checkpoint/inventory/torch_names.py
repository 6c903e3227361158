"""What the names in a PyTorch state dict show: tables of TorchRec, and states of optimizers.

    <module>.embedding_bags.<table>.weight   TorchRec's EmbeddingBagCollection
    <module>.embeddings.<table>.weight       TorchRec's EmbeddingCollection
    ....<table>.weight_qscale, weight_qbias  of a quantized table, whose weight is of integers
    optim.state.<variable>.<slot>            state of an optimizer: slot variables

A state dict has no classes: the weight of an `nn.Embedding` is called like that of any other layer,
so such a table must be named.

TorchRec on TPU names a stack of tables like a table, and records how rows are sharded. Its
optimizers keep their state in `<module>.accumulators.<table>`, `momentums` and `velocities`.

Source: TorchRec, torchrec/modules/embedding_modules.py (the names of tables),
torchrec/optim/keyed.py (those of states) and torchrec/experimental/torch_tpu/checkpoint/utils.py
(how rows are sharded: unstack_and_unshard_global_tensor, reverse_mod_shard); torch 2.13,
distributed/checkpoint/state_dict.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from export.checkpoint.inventory.findings import Findings, stacked_spec, table_spec
from export.checkpoint.inventory.sparsecore import LayoutContradiction, check_stack
from export.checkpoint.inventory.specs import TableSpec, may_be_table
from export.checkpoint.layouts import SparseCore
from export.checkpoint.variables import Entry, ModSharding
from export.errors import CheckpointError

_TABLE = re.compile(r"(?:.+\.)?(?:embedding_bags|embeddings)\.(?P<name>[^.]+)\.weight")
_SHARDED_TABLE = re.compile(r"(?:.+?\.)?(?:embedding_bags|embeddings)\.(?P<name>.+)\.weight")
"""The variables that TorchRec on TPU shards, with any dots in their names."""
_COLLECTIONS = ("embedding_bags", "embeddings")
_SHARDED_SLOT = re.compile(
    r"(?P<module>(?:.+?\.)?)(?P<name>accumulators|momentums|velocities)\.(?P<of>.+?)(?:\.weight)?"
)
_SCALES = ("_qscale", "_qbias", "_qscale_bias", "_qscaleshift")
_QUANTIZED_REASON = (
    "its rows are quantized ({dtype}, with a scale and a bias for each row beside them, or within "
    "it), which is not read here: save the float tables, before "
    "torchrec.inference.modules.quantize_inference_model or quantize_embeddings; rowcast-export "
    "quantizes rows itself (dtype int8)"
)
_PADDING_NOTE = "its last rows may be padding: nothing records how many rows it has without"
_STATE = re.compile(r"(?:optim|optimizer|optimizers|fused_optimizer)\.(?:\d+\.)?state\.(?P<of>.+)")


def find_in_modules(findings: Findings) -> None:
    """Finds slot variables and tables by their names."""
    entries = findings.checkpoint.entries
    states = {key: match["of"] for key in entries if (match := _STATE.fullmatch(key))}
    variables = _by_path(entries.keys() - states)
    for key, path in states.items():
        slot, variable_key = _owner(path, variables)
        findings.add_slot(slot, key, variable_key)

    _reject_quantized(findings)
    sharding = findings.checkpoint.storage.sharding
    claimed_keys = findings.claimed_keys()
    tables = []
    for key, entry in entries.items():
        if key in states or key in claimed_keys or not may_be_table(entry):
            continue
        # Only TorchRec on TPU, which records a sharding, names slot variables so.
        if sharding is not None and _is_slot(findings, key):
            continue
        pattern = _TABLE if sharding is None else _SHARDED_TABLE
        match = pattern.fullmatch(key)
        if match is None:
            continue
        specs = [table_spec(match["name"], entry, "TorchRec", "")]
        if sharding is not None:
            try:
                specs = _sharded_tables(match["name"], entry, sharding)
            except LayoutContradiction as problem:
                raise CheckpointError(
                    f"variable {key} {list(entry.shape)} of checkpoint {findings.checkpoint.name}: "
                    f"{problem}, by planner_data['sparsecore']; copy the checkpoint again"
                ) from problem
        tables += [(spec, key.removesuffix(".weight")) for spec in specs]
    findings.add_tables(tables)


def _reject_quantized(findings: Findings) -> None:
    """Rejects tables whose rows TorchRec or FBGEMM quantized, and the variables that scale them."""
    entries = findings.checkpoint.entries
    for key, entry in entries.items():
        match = _TABLE.fullmatch(key)
        scales = [f"{key}{suffix}" for suffix in _SCALES if f"{key}{suffix}" in entries]
        has_integers = entry.dtype in ("uint8", "int8", "int32", "quint8", "quint4x2")
        # Integers alone prove nothing: they need the name of a table, or scales beside them.
        if not scales and not (match is not None and has_integers):
            continue
        name = key.removesuffix(".weight")
        if match is not None:
            name = match["name"]
        findings.reject(name, key, _QUANTIZED_REASON.format(dtype=entry.dtype))
        for scale in scales:
            findings.reject(f"{name}{scale.removeprefix(key)}", scale, f"it scales {name!r}")


def _is_slot(findings: Findings, key: str) -> bool:
    """Returns whether a variable is the slot variable of a sharded table, and adds it."""
    slot = _SHARDED_SLOT.fullmatch(key)
    if slot is None:
        return False
    tables = [f"{slot['module']}{kind}.{slot['of']}.weight" for kind in _COLLECTIONS]
    stored_tables = [table for table in tables if table in findings.checkpoint.entries]
    if stored_tables:
        findings.add_slot(slot["name"], key, stored_tables[0])
    return bool(stored_tables)


def _sharded_tables(name: str, entry: Entry, sharding: ModSharding) -> list[TableSpec]:
    """Returns the tables in a variable whose rows are sharded over SparseCores.

    Args:
      name: The name of the stack or of the table.
      entry: The variable.
      sharding: The sharding that the training program recorded.

    Raises:
      LayoutContradiction: The variable cannot be what was recorded.
    """
    core_rows, remainder = divmod(entry.shape[0], sharding.cores)
    if remainder:
        raise LayoutContradiction(
            f"its {entry.shape[0]} rows do not divide among {sharding.cores} SparseCores"
        )
    members = [table for table in sharding.tables if table.stack == name]
    # A variable may have the name of the only table of its stack.
    members = members or [table for table in sharding.tables if table.name == name]
    for table in members:
        if table.stored != entry.shape:
            raise LayoutContradiction(
                f"the stack of table {table.name!r} is recorded as {list(table.stored)}"
            )
    specs = [stacked_spec(table, entry, "TorchRec", "") for table in members]
    # Of a table that is alone in its variable, only the number of cores was recorded.
    if not members:
        layout = SparseCore(sharding.cores, core_rows, offset=0, rotation=0)
        specs = [table_spec(name, entry, "TorchRec", "", layout=layout, note=_PADDING_NOTE)]
    check_stack(specs)
    return specs


def _by_path(keys: Iterable[str]) -> dict[str, str]:
    """Returns variables by their names, with and without the name under which a program saved the
    whole model, as in `{"model": model.state_dict()}`.
    """
    by_path: dict[str, str] = {}
    for key in keys:
        by_path.setdefault(key.partition(".")[2], key)
    # A whole name takes precedence over another one without its first part.
    return by_path | {key: key for key in keys}


def _owner(path: str, variables: dict[str, str]) -> tuple[str, str]:
    """Returns the slot and the variable that a state belongs to; the variable is "" if none is
    known.
    """
    variable = path
    # Slots and variables may both have dots in their names: the longest variable is right.
    while variable:
        variable, _, _ = variable.rpartition(".")
        if variable in variables:
            return path[len(variable) + 1 :], variables[variable]
    return path.rpartition(".")[2], ""
