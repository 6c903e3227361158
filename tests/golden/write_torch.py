"""Checkpoints of PyTorch by torch and safetensors themselves: python write_torch.py DIRECTORY

Needs torch and safetensors, which rowcast does not use; torch.tar.xz was written with torch
2.13.0 and safetensors 0.8.0. Two processes save a model as TorchRec names and shards one: a table
by its rows, another by its columns, one in bfloat16, and the state of an optimizer.

In torch_sparsecore two processes of two cores each save a table as TorchRec does on TPU: row r lies
in the block of core r mod 4, and only the planner's data say so. Each value is its row. That folder
was written with torch 2.14.1.
"""

# mypy: ignore-errors

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as processes
from safetensors.torch import save_file
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

BAGS = "model.sparse.ebc.embedding_bags"
CORES = 2


def tensors():
    generator = torch.Generator().manual_seed(5)

    def random(*shape):
        return torch.randn(shape, generator=generator)

    users = f"{BAGS}.users.weight"
    return {
        users: (random(21, 4), Shard(0)),
        f"{BAGS}.items.weight": (random(10, 8), Shard(1)),
        "model.sparse.ec.embeddings.tags.weight": (random(9, 4).to(torch.bfloat16), Shard(0)),
        f"optim.state.{users}.users.momentum1": (random(21, 4), Shard(0)),
        "model.over.0.weight": (random(3, 5), None),
        "model.words.weight": (random(7, 5), None),
        "model.seen": (torch.arange(4), None),
    }


def save(rank, directory, world):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    state = {"epoch": 3}
    for name, (tensor, sharding) in tensors().items():
        sharded = sharding is not None
        state[name] = distribute_tensor(tensor, mesh, [sharding]) if sharded else tensor
    dcp.save(state, checkpoint_id=str(directory / "torch_distributed"))
    dist.destroy_process_group()


class SparseCorePlanner(DefaultSavePlanner):
    """Records that rows are spread over cores.

    Source: TorchRec, torchrec/experimental/torch_tpu/checkpoint/planners.py, SparseCoreSavePlanner,
    of August 2026.
    """

    def create_global_plan(self, all_plans):
        plans, metadata = super().create_global_plan(all_plans)
        cores = {"world_size": dist.get_world_size(), "num_sc_per_device": CORES}
        recorded = {**(metadata.planner_data or {}), "sparsecore": cores}
        return plans, dataclasses.replace(metadata, planner_data=recorded)


def save_on_cores(rank, directory, world):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29534")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    rows = torch.arange(64.0)[:, None].repeat(1, 4)
    blocks = rows.reshape(-1, world * CORES, 4).transpose(0, 1).reshape(64, 4)
    mesh = init_device_mesh("cpu", (world,))
    state = {f"{BAGS}.users.weight": distribute_tensor(blocks.contiguous(), mesh, [Shard(0)])}
    dcp.save(state, checkpoint_id=str(directory / "torch_sparsecore"), planner=SparseCorePlanner())
    dist.destroy_process_group()


def main():
    directory = Path(sys.argv[1]).resolve()
    directory.mkdir(parents=True)
    processes.spawn(save, (directory, 2), nprocs=2)
    processes.spawn(save_on_cores, (directory, 2), nprocs=2)

    whole = {name: tensor for name, (tensor, _) in tensors().items()}
    names = sorted(whole)
    weight_map = {}
    (directory / "torch_safetensors").mkdir()
    for number, part in enumerate((names[:3], names[3:]), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: whole[name] for name in part}, directory / "torch_safetensors" / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "torch_safetensors/model.safetensors.index.json").write_text(json.dumps(index))

    # numpy has no bfloat16: its 16 bits.
    values = {
        name: (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
        for name, tensor in whole.items()
    }
    np.savez(directory / "torch_values.npz", **values)


if __name__ == "__main__":
    main()
