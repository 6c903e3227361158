"""Checkpoints of PyTorch by torch and safetensors themselves: python write_torch.py DIRECTORY

Needs torch, safetensors and TorchRec, which rowcast does not use; torch.tar.xz was written with
torch 2.15.0 and safetensors 0.8.0. Two processes save a model as TorchRec names and shards one: a
table by its rows, another by its columns, one in bfloat16, and the state of an optimizer.

In torch_sparsecore two processes of two cores each save tables by TorchRec's own planner for TPUs,
which alone records how rows are spread over cores: `users` in a variable of its own, whose values
are the rows, and a stack of three tables with padding. It was written with TorchRec 1.9.2, torch
2.13.0 and fbgemm-gpu-cpu 1.8.0; without TorchRec, it is left out.
"""

# mypy: ignore-errors

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as processes
from safetensors.torch import save_file
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


def stacked_tables():
    generator = torch.Generator().manual_seed(6)
    shapes = {"genres": (24, 12), "movies": (70, 16), "tags": (33, 16)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def save_on_cores(rank, directory, world):
    from torchrec.experimental.torch_tpu.checkpoint.planners import SparseCoreSavePlanner
    from torchrec.experimental.torch_tpu.checkpoint.utils import (
        mod_shard,
        stack_and_shard_global_tensor,
    )
    from torchrec.experimental.torch_tpu.modules.embedding_configs import SparseCoreEmbeddingConfig
    from torchrec.experimental.torch_tpu.modules.table_stacking import stack_tables
    from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29534")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    cores = world * CORES
    tables = stacked_tables()
    configs = [
        SparseCoreEmbeddingConfig(
            EmbeddingBagConfig(
                num_embeddings=len(rows),
                embedding_dim=rows.shape[1],
                name=name,
                feature_names=[name],
                pooling=PoolingType.MEAN,
            )
        )
        for name, rows in tables.items()
    ]
    stack = stack_tables(configs, list(tables), world, CORES)
    users = torch.arange(64.0)[:, None].repeat(1, 4)
    variables = {
        "users": mod_shard(users, cores),
        stack.stack_name: stack_and_shard_global_tensor(tables, stack, cores),
    }
    state = {
        f"{BAGS}.{name}.weight": distribute_tensor(rows, mesh, [Shard(0)])
        for name, rows in variables.items()
    }
    planner = SparseCoreSavePlanner(num_sc_per_device=CORES, stacked_configs=[stack])
    dcp.save(state, checkpoint_id=str(directory / "torch_sparsecore"), planner=planner)
    dist.destroy_process_group()


def main():
    directory = Path(sys.argv[1]).resolve()
    directory.mkdir(parents=True)
    processes.spawn(save, (directory, 2), nprocs=2)
    if find_spec("torchrec"):
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
    stacked = {name: rows.numpy() for name, rows in stacked_tables().items()}
    np.savez(directory / "torch_sparsecore_values.npz", **stacked)


if __name__ == "__main__":
    main()
