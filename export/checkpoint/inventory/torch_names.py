"""What the names of a PyTorch state dict tell: tables of TorchRec, and states of optimizers.

    <module>.embedding_bags.<table>.weight   TorchRec's EmbeddingBagCollection
    <module>.embeddings.<table>.weight       TorchRec's EmbeddingCollection
    optim.state.<variable>.<slot>            state of an optimizer: slot variables

A state dict has no classes: the weight of an `nn.Embedding` is called like that of any other layer,
so such a table must be named.

Source: TorchRec, torchrec/modules/embedding_modules.py (the names of tables), and
torchrec/optim/keyed.py (those of states); torch 2.13, distributed/checkpoint/state_dict.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from export.checkpoint.inventory.findings import Findings, Found, table_spec
from export.checkpoint.inventory.specs import may_be_table

_TABLE = re.compile(r"(?:.+\.)?(?:embedding_bags|embeddings)\.(?P<name>[^.]+)\.weight")
_STATE = re.compile(r"(?:optim|optimizer|optimizers|fused_optimizer)\.(?:\d+\.)?state\.(?P<of>.+)")


def find_in_modules(found: Findings) -> None:
    """Finds slot variables and tables by their names."""
    entries = found.checkpoint.entries
    states = {key: match["of"] for key in entries if (match := _STATE.fullmatch(key))}
    variables = _by_path(entries.keys() - states)
    for key, path in states.items():
        slot, of = _owner(path, variables)
        found.add_slot(slot, key, of)

    tables = []
    for key, entry in entries.items():
        table = _TABLE.fullmatch(key)
        if table is not None and key not in states and may_be_table(entry):
            module = key.removesuffix(".weight")
            tables.append(Found(table_spec(table["name"], entry, "TorchRec", ""), module))
    found.add_tables(tables)


def _by_path(keys: Iterable[str]) -> dict[str, str]:
    """Returns variables by their names, with and without the name under which a program saved the
    whole model, as in `{"model": model.state_dict()}`.
    """
    by_path: dict[str, str] = {}
    for key in keys:
        by_path.setdefault(key.partition(".")[2], key)
    return by_path | {key: key for key in keys}


def _owner(path: str, variables: dict[str, str]) -> tuple[str, str]:
    """Returns the slot and the variable that a state belongs to; the variable is "" if none is
    known.
    """
    variable = path
    while variable:
        variable, _, _ = variable.rpartition(".")
        if variable in variables:
            return path[len(variable) + 1 :], variables[variable]
    return path.rpartition(".")[2], ""
