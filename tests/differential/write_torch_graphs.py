"""Towers of PyTorch as scripts/torch_tower.py writes them: python write_torch_graphs.py FILE

Needs torch, which rowcast does not use: run it from the top folder of a checkout, with PYTHONPATH=.
torch_graphs.tar.xz was written with torch 2.15.0. For `ranker` it also records what the whole model
returns with the tables of torch.tar.xz, for examples that a recipe reads.
"""

# mypy: ignore-errors

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path

import torch
from torch.nn import functional

from scripts.torch_tower import write_tower
from tests.differential.write_torch import BAGS, tensors
from tests.models.torch_towers import OfDict, cases


def whole_model(ranker):
    """Returns examples, and what the tables and the tower return for them together."""
    tables = {name: tensor.float() for name, (tensor, _) in tensors().items()}
    users = tables[f"{BAGS}.users.weight"]
    items = tables[f"{BAGS}.items.weight"]
    tags = tables["model.sparse.ec.embeddings.tags.weight"]
    for number in range(64):
        user = number % 21
        item = (3 * number) % 10
        bag = [(number + step) % 9 for step in range(1 + number % 3)]
        age = float(number % 7) / 3 - 1
        with torch.no_grad():
            actual = ranker(
                user=users[[user]],
                item=items[[item]],
                tag=functional.embedding_bag(torch.tensor([bag]), tags, mode="mean"),
                age=torch.tensor([age]),
            )
        outputs = {name: float(value) for name, value in actual.items()}
        yield {"user": user, "item": item, "tag": bag, "age": age, **outputs}


def main():
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "torch_graphs"
        folder.mkdir()
        for name, module, examples in cases():
            module.eval()
            write_tower(OfDict(module).eval(), examples, folder / f"{name}.npz")
            if name == "ranker":
                lines = [json.dumps(example) for example in whole_model(module)]
                (folder / "examples.jsonl").write_text("\n".join(lines) + "\n")
        with tarfile.open(sys.argv[1], "w:xz") as archive:
            archive.add(folder, "torch_graphs")


if __name__ == "__main__":
    main()
