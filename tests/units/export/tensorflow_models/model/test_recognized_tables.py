"""Tables of small models, found in their checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.layouts import Mod
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.errors import CheckpointError, NotConvertible
from export.front_end.specs import ModelSpec, TableFacts
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.named_graphs import NamedGraph, without_memory
from export.tensorflow_models.frameworks.placeholders import remember_line, tables_unallocated
from export.tensorflow_models.model.tables import recognize_tables
from export.tensorflow_models.model.tracing import TracedModel
from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.export.traced_models import one_table_recipe

ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)


def saved(folder: Path, **objects: Any) -> Checkpoint:
    return open_checkpoint(Path(tf.train.Checkpoint(**objects).write(str(folder / "ckpt"))))


def named(folder: Path, boxes: Any = None, **variables: Any) -> Checkpoint:
    """Writes a checkpoint by names, as TF1 does."""
    write_bundle(folder / "names", variables, boxes=boxes or {})
    return open_checkpoint(folder / "names")


def holder(**attributes: Any) -> Any:
    module = tf.Module()
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def table(rows: int = 6, name: str = "embeddings", placeholder: bool = True) -> Any:
    """Returns the variable of a table as the exporter makes it, or as the user did."""
    if placeholder:
        with tables_unallocated():
            return tf.Variable(tf.zeros([rows, 2]), name=name)
    variable = tf.Variable(tf.zeros([rows, 2]), name=name)
    remember_line(variable)
    return variable


def inventory_of(
    checkpoint: Checkpoint,
    root: Any,
    variables: Mapping[str, Any],
    folder: Path,
    object_path: str = "model",
    layout: str | None = None,
    **sections: Any,
) -> Inventory:
    """Returns what is found of a model's tables, whose config names end in `_stored`."""
    job = one_table_recipe("build")
    page = job.model_dump(mode="json", exclude_unset=True) | sections
    page["checkpoint"] = {"path": "ckpt", "object_path": object_path, "layout": layout}
    tables = {
        name: TableFacts(name, f"{name}_stored", variable.shape[0], 2)
        for name, variable in variables.items()
    }
    traced = TracedModel(ModelSpec(tables, {}, {}), (), root, variables)
    return recognize_tables(checkpoint, traced, type(job).model_validate(page), folder)


def rejected(error: type[Exception], *arguments: Any, **options: Any) -> str:
    with pytest.raises(error) as problem:
        inventory_of(*arguments, **options)
    return re.sub(r"\.py:\d+", ".py", str(problem.value))


def test_table_is_found_by_the_objects_of_the_model(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, model=holder(users=tf.Variable(ROWS)))
    users = table()
    inventory = inventory_of(checkpoint, holder(users=users), {"users": users}, tmp_path)
    assert inventory.table("users").key == "model/users/.ATTRIBUTES/VARIABLE_VALUE"


def test_table_is_the_one_that_the_recipe_names(tmp_path: Path) -> None:
    checkpoint = saved(
        tmp_path, model=holder(users=tf.Variable(ROWS), others=tf.Variable(ROWS + 1))
    )
    users = table()
    key = "model/others/.ATTRIBUTES/VARIABLE_VALUE"
    inventory = inventory_of(
        checkpoint,
        holder(users=users),
        {"users": users},
        tmp_path,
        tables={"users": {"key": key}},
    )
    assert inventory.table("users").key == key


def test_table_of_another_size_is_rejected_with_its_line(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, model=holder(users=tf.Variable(ROWS)))
    users = table(7)
    message = rejected(CheckpointError, checkpoint, holder(users=users), {"users": users}, tmp_path)
    assert message == (
        "table 'users' is [7, 2] in the model (test_recognized_tables.py) and [6, 2] in checkpoint "
        "ckpt ('model/users/.ATTRIBUTES/VARIABLE_VALUE'); the model code is not the one that was "
        "saved"
    )


def test_model_that_was_saved_under_a_name_is_rejected_without_it(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, net=holder(users=tf.Variable(ROWS)))
    users = table()
    arguments = (checkpoint, holder(users=users), {"users": users}, tmp_path)
    assert rejected(CheckpointError, *arguments, object_path="") == (
        "table 'users': the model is not at the top of checkpoint ckpt but under 'net', as "
        'tf.train.Checkpoint(net=...) saves it: write checkpoint.object_path = "net"'
    )


def test_table_that_is_not_in_the_checkpoint_is_rejected_with_how_to_name_it(
    tmp_path: Path,
) -> None:
    checkpoint = saved(tmp_path, model=holder(others=tf.Variable(ROWS)))
    users = table()
    message = rejected(CheckpointError, checkpoint, holder(users=users), {"users": users}, tmp_path)
    assert message == (
        "table 'users' is 'users_stored' of the model (test_recognized_tables.py), which is not in "
        "checkpoint ckpt; the model code is not the one that was saved, or its variable has "
        "another place there: name it as tables.users.key"
    )


def test_table_of_a_layer_that_is_not_there_is_rejected_with_its_line(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, model=holder(others=tf.Variable(ROWS)))
    users = table(placeholder=False)
    message = rejected(NotConvertible, checkpoint, holder(users=users), {"users": users}, tmp_path)
    assert message.startswith(
        "table 'users' of the model (test_recognized_tables.py): checkpoint ckpt"
    )
    hidden = rejected(NotConvertible, checkpoint, holder(), {"users": users}, tmp_path)
    assert "; tf.train.Checkpoint saves only what a model holds as attributes" in hidden
    assert "tf.train.Checkpoint saves only" not in message


def test_table_in_a_checkpoint_of_the_other_keras_is_rejected_with_the_setting(
    tmp_path: Path,
) -> None:
    layer = holder(_embeddings=tf.Variable(ROWS))
    checkpoint = saved(tmp_path, model=holder(layer=layer))
    model = tf.keras.Sequential([tf.keras.layers.Embedding(6, 2)])
    model.build((None,))
    users = model.layers[0].embeddings
    message = rejected(CheckpointError, checkpoint, model, {"users": users}, tmp_path)
    assert message.startswith("table 'users' of the model")
    assert " is not in checkpoint ckpt: it was written by Keras 3, and the model's" in message


@pytest.mark.parametrize("name", ["users", "embed.users"])
def test_table_is_the_one_that_a_layout_file_states(name: str, tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, model=holder(stack=tf.Variable(ROWS)))
    key = "model/stack/.ATTRIBUTES/VARIABLE_VALUE"
    (tmp_path / "layout.toml").write_text(
        f'[tables.users]\nkey = "{key}"\nkind = "sparse_core"\nrows = 6\ndim = 2\ncores = 2\n'
    )
    tables = {name: table(placeholder=False)}
    inventory = inventory_of(checkpoint, holder(), tables, tmp_path, layout="layout.toml")
    assert (inventory.table(name).key, inventory.table(name).origin) == (key, "layout file")


PARTITIONS = [[(0, 3), (0, -1)], [(3, 3), (0, -1)]]


def placeholder_by_name(mod: bool) -> Any:
    variable = without_memory("users", tf.TensorShape([6, 2]), tf.float32, trainable=True)
    variable.mod = mod
    return variable


@pytest.mark.parametrize("mod", [False, True])
@pytest.mark.parametrize("partitioned", [False, True])
def test_partitions_of_tf1_have_the_order_of_the_lookup(
    mod: bool, partitioned: bool, tmp_path: Path
) -> None:
    boxes = {"users": PARTITIONS} if partitioned else {}
    checkpoint = named(tmp_path, boxes, users=ROWS)
    users = placeholder_by_name(mod)
    root = NamedGraph(None, "model.py:build", {"users": users})
    found_table = inventory_of(checkpoint, root, {"users": users}, tmp_path).table("users")
    assert isinstance(found_table.layout, Mod) == (mod and partitioned)
    # The model's own lookups have the order: there is nothing to note or to state.
    assert (found_table.note, found_table.stated) == ("", False)


def test_partitions_have_the_order_that_the_recipe_states(tmp_path: Path) -> None:
    checkpoint = named(tmp_path, {"users": PARTITIONS}, users=ROWS)
    users = placeholder_by_name(mod=False)
    root = NamedGraph(None, "model.py:build", {"users": users})
    tables = {"users": {"mod": True}}
    stated = inventory_of(checkpoint, root, {"users": users}, tmp_path, tables=tables).table(
        "users"
    )
    assert isinstance(stated.layout, Mod)
    assert stated.stated is True
