"""Checkpoints of TF1's Saver, which saves names and no objects, and what is saved
without either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.differential.expectations import DIM, finish, random_values

v1 = tf.compat.v1
ROWS = 50
OPTIMIZERS: dict[str, tuple[Callable[[], Any], Sequence[str]]] = {
    "adagrad": (lambda: v1.train.AdagradOptimizer(0.1), ["Adagrad"]),
    "adam": (lambda: v1.train.AdamOptimizer(0.1), ["Adam", "Adam_1"]),
    "ftrl": (lambda: v1.train.FtrlOptimizer(0.1), ["Ftrl", "Ftrl_1"]),
    "momentum": (lambda: v1.train.MomentumOptimizer(0.1, 0.9), ["Momentum"]),
    "rmsprop": (
        lambda: v1.train.RMSPropOptimizer(0.1, centered=True),
        ["RMSProp", "RMSProp_1", "RMSProp_2"],
    ),
    "adadelta": (lambda: v1.train.AdadeltaOptimizer(0.1), ["Adadelta", "Adadelta_1"]),
    "adagrad_da": (
        lambda: v1.train.AdagradDAOptimizer(0.1, v1.train.get_or_create_global_step()),
        ["AdagradDA", "AdagradDA_1"],
    ),
    "named": (lambda: v1.train.AdamOptimizer(0.1, name="mine"), ["mine", "mine_1"]),
    "proximal_adagrad": (lambda: v1.train.ProximalAdagradOptimizer(0.1), ["ProximalAdagrad"]),
}


@contextmanager
def session() -> Iterator[Any]:
    with tf.Graph().as_default(), v1.Session() as opened:
        yield opened


def partitioned(name: str, axis: int, parts: int) -> Any:
    partitioner = v1.fixed_size_partitioner(parts, axis) if parts > 1 else None
    initializer = v1.random_normal_initializer(seed=1)
    return v1.get_variable(name, (ROWS, DIM), initializer=initializer, partitioner=partitioner)


def feature_column(
    directory: Path, optimizer: str, axis: int = 0, parts: int = 1, sharded: bool = False
) -> None:
    """A variable named as a feature column names its table, trained with one of TF1's
    optimizers.
    """
    make, slots = OPTIMIZERS[optimizer]
    with session() as opened:
        step = v1.train.get_or_create_global_step()
        with v1.variable_scope("dnn/input_layer/user_embedding"):
            table = partitioned("embedding_weights", axis, parts)
        pieces = list(table) if parts > 1 else [table]
        loss = tf.add_n([tf.reduce_sum(piece[:1] ** 2) for piece in pieces])
        train = make().minimize(loss, global_step=step)
        opened.run(v1.global_variables_initializer())
        opened.run(train)
        v1.train.Saver(sharded=sharded).save(
            opened, str(directory / "model.ckpt"), global_step=step
        )
        values = opened.run(tf.concat(pieces, axis) if parts > 1 else table)
    finish(
        directory, {"user_embedding": values}, slots, step=1, origin="feature column", candidates=0
    )


def real_column(directory: Path) -> None:
    """A DenseFeatures of TF1 with an embedding column, so that the name is TensorFlow's own."""
    with session() as opened:
        column = tf.feature_column.categorical_column_with_identity("user", ROWS)
        inputs = v1.feature_column.input_layer(
            {"user": tf.constant([[1], [2]], tf.int64)},
            [tf.feature_column.embedding_column(column, DIM)],
        )
        assert inputs.shape[1] == DIM
        opened.run(v1.global_variables_initializer())
        v1.train.Saver().save(opened, str(directory / "model.ckpt"))
        values = opened.run(v1.global_variables()[0])
    finish(directory, {"user_embedding": values}, [], step=None, origin="feature column")


def bare(directory: Path) -> None:
    """A variable, cut along its columns, that nothing shows to be a table."""
    with session() as opened:
        v1.train.create_global_step()
        cut = partitioned("scope/emb", 1, 3)
        opened.run(v1.global_variables_initializer())
        v1.train.Saver().save(opened, str(directory / "ckpt"))
        values = opened.run(tf.concat(list(cut), 1))
    finish(directory, {"emb": values}, [], step=0, origin="named", named={"emb": "scope/emb"})


def spread_by_mod(directory: Path) -> None:
    """Rows that the `mod` strategy reads from partitions; TensorFlow's own lookup says which row is
    which.
    """
    with session() as opened:
        cut = partitioned("users", 0, 4)
        rows = v1.nn.embedding_lookup(list(cut), tf.range(ROWS), partition_strategy="mod")
        opened.run(v1.global_variables_initializer())
        v1.train.Saver().save(opened, str(directory / "model.ckpt"))
        values = opened.run(rows)
    finish(
        directory,
        {"users": values},
        [],
        step=None,
        origin="named",
        named={"users": "users"},
        mod=["users"],
    )


def merged_grid(directory: Path) -> None:
    """One save of several tasks, merged: a grid of rows and columns over as many data files."""
    values = random_values(ROWS, 1)
    tasks = []
    for task, (row, column) in enumerate((row, column) for row in (0, 20) for column in (0, 3)):
        height = (20, 30)[row > 0]
        width = (3, 5)[column > 0]
        tasks.append(str(directory / f"task_{task}"))
        tf.raw_ops.SaveV2(
            prefix=tasks[-1],
            tensor_names=["emb"],
            shape_and_slices=[f"{ROWS} {DIM} {row},{height}:{column},{width}"],
            tensors=[values[row : row + height, column : column + width]],
        )
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=tasks, destination_prefix=str(directory / "ckpt"), delete_old_dirs=False
    )
    finish(directory, {"emb": values}, [], step=None, origin="named", named={"emb": "emb"})


def version_one(directory: Path) -> None:
    """A TF1 Saver of the first format, which is rejected."""
    with session() as opened:
        v1.get_variable("emb", initializer=tf.constant(np.ones((5, DIM), np.float32)))
        opened.run(v1.global_variables_initializer())
        v1.train.Saver(write_version=v1.train.SaverDef.V1).save(
            opened, str(directory / "model.ckpt")
        )


NAME_CASES: dict[str, Callable[[Path], None]] = {
    **{f"tf1_{name}": partial(feature_column, optimizer=name) for name in OPTIMIZERS},
    "tf1_rows": partial(feature_column, optimizer="adam", parts=4),
    "tf1_columns": partial(feature_column, optimizer="ftrl", parts=3, axis=1),
    "tf1_sharded_saver": partial(feature_column, optimizer="adagrad", parts=4, sharded=True),
    "tf1_column": real_column,
    "tf1_mod": spread_by_mod,
    "name_based": bare,
    "merged_grid": merged_grid,
    "version_one": version_one,
}
