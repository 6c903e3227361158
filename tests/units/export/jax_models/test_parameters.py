"""How the parameters of a model are found in a checkpoint of Orbax."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from export.jax_models.functions import JaxFunctions
from export.jax_models.parameters import StoredParameters
from tests.units.export.checkpoint.orbax_trees import write_item

jax = pytest.importorskip("jax")


def shapes(**sizes: tuple[int, ...]) -> dict[str, Any]:
    return {name: jax.ShapeDtypeStruct(size, np.float32) for name, size in sizes.items()}


MODEL = {"users": {"table": (4, 2)}, "bias": (3,)}
PATHS = ("bias", "users/table")


def stored(
    folder: Path,
    *keys: str,
    object_path: str = "",
    extra_arrays: Mapping[str, Any] | None = None,
    branch: str = "",
) -> StoredParameters:
    """Writes a checkpoint that has an array at each key, of the size that its name has in the
    model, and finds the model's parameters in it, which are in a branch of its tree if it has one.
    """
    leaves: dict[str, Any] = {}
    for index, key in enumerate(keys):
        size = (4, 2) if "table" in key else (3,)
        leaves[key] = np.full(size, index, np.float32)
    write_item(folder / "checkpoint", {**leaves, **(extra_arrays or {})})
    tree = {"users": shapes(table=(4, 2)), **shapes(bias=(3,))}
    if branch:
        tree = {branch: tree}
    checkpoint = open_checkpoint(folder / "checkpoint")
    return StoredParameters(JaxFunctions(tree, {}), checkpoint, object_path)


@pytest.mark.parametrize(
    ("keys", "beginning"),
    [
        (("users.table", "bias"), ""),
        (("params.users.table", "params.bias"), "params"),
        (("state.params.users.table", "state.params.bias"), "state.params"),
        (("params.users.table.value", "params.bias.value"), "params"),
        (("old.users.table", "params.users.table", "params.bias"), "params"),
        (("params.users.table", "params.bias", "opt_state.mu.users.table"), "params"),
    ],
)
def test_parameters_begin_where_most_of_them_are(
    keys: tuple[str, ...], beginning: str, tmp_path: Path
) -> None:
    parameters = stored(tmp_path, *keys)
    assert parameters.beginning == beginning
    index_of = {key.removesuffix(".value"): index for index, key in enumerate(keys)}
    for path in PATHS:
        dotted = path.replace("/", ".")
        wanted = index_of[f"{beginning}.{dotted}" if beginning else dotted]
        assert parameters.key(path) == keys[wanted]
        assert set(parameters.read(path).reshape(-1)) == {wanted}
    assert parameters.find(PATHS) == {path: parameters.key(path) for path in PATHS}


@pytest.mark.parametrize(
    ("keys", "object_path", "bias"),
    [
        (("users.table", "bias"), "", "bias"),
        (("model.users.table.value", "model.bias.value"), "", "model.bias.value"),
        (("params.users.table", "params.bias", "users.table", "bias"), "", "params.bias"),
        (("params.users.table", "params.bias", "ema.users.table", "ema.bias"), "ema", "ema.bias"),
        (("state.params.users.table", "state.params.bias"), "state", "state.params.bias"),
    ],
)
def test_branch_of_flax_is_stored_or_what_is_in_it(
    keys: tuple[str, ...], object_path: str, bias: str, tmp_path: Path
) -> None:
    parameters = stored(tmp_path, *keys, object_path=object_path, branch="params")
    keys_of_parameters = parameters.find(["params/bias", "params/users/table"])
    assert keys_of_parameters["params/bias"] == bias


def test_branch_of_another_name_must_be_stored(tmp_path: Path) -> None:
    parameters = stored(tmp_path, "params.users.table", "params.bias", branch="ema")
    with pytest.raises(
        CheckpointError, match=r"parameter ema\.bias \[3\] is not in the checkpoint"
    ):
        parameters.find(["ema/bias", "ema/users/table"])


@pytest.mark.parametrize(
    "name",
    [
        "opt",
        "opt_state",
        "opt_states",
        "optimizer",
        "optimizer_state",
        "optimizer_states",
        "optimizer_variables",
    ],
)
def test_state_of_an_optimizer_holds_no_parameters(name: str, tmp_path: Path) -> None:
    keys = ("params.users.table", f"{name}.users.table", f"{name}.bias")
    assert stored(tmp_path, *keys).beginning == "params"


@pytest.mark.parametrize("object_path", ["ema.params", "ema/params", "/ema/params/", "ema..params"])
def test_object_path_tells_where_parameters_begin(object_path: str, tmp_path: Path) -> None:
    keys = ("ema.params.users.table", "ema.params.bias", "params.users.table", "params.bias")
    parameters = stored(tmp_path, *keys, object_path=object_path)
    assert parameters.beginning == "ema.params"
    assert parameters.key("bias") == "ema.params.bias"


def test_parameters_in_several_places_are_rejected_with_the_first_four(tmp_path: Path) -> None:
    keys = tuple(f"p{number}.{name}" for number in range(5) for name in ("users.table", "bias"))
    parameters = stored(tmp_path, *keys, "few.bias")
    with pytest.raises(CheckpointError) as caught:
        parameters.find(PATHS)
    assert "under several paths: 'p0' or 'p1' or 'p2' or 'p3'; write the one" in str(caught.value)


def test_array_of_another_shape_is_not_the_parameter(tmp_path: Path) -> None:
    extra_arrays = {"other.users.table": np.zeros((5, 2), np.float32)}
    parameters = stored(tmp_path, "params.users.table", "other.bias", extra_arrays=extra_arrays)
    # Each place holds one of the two.
    with pytest.raises(CheckpointError, match="'other' or 'params'"):
        parameters.find(PATHS)


def test_parameters_that_are_missing_or_differ_are_named(tmp_path: Path) -> None:
    extra_arrays = {"params.users.table": np.zeros((5, 2), np.float16)}
    parameters = stored(tmp_path, extra_arrays=extra_arrays, object_path="params")
    with pytest.raises(CheckpointError) as caught:
        parameters.find(PATHS)
    message = str(caught.value)
    assert message.startswith(f"checkpoint {tmp_path / 'checkpoint'}: parameter bias [3] is not in")
    assert (
        "; parameter users.table is float32 [4, 2] in the model and float16 [5, 2] there. The "
        "model code is not the one that was saved, or checkpoint.object_path ('params') is not "
        "where its parameters begin"
    ) in message
    assert parameters.find([]) == {}


@pytest.mark.parametrize("values", [np.zeros((4, 2), np.float16), np.zeros((2, 4), np.float32)])
def test_parameter_of_another_dtype_or_shape_is_rejected(values: Any, tmp_path: Path) -> None:
    parameters = stored(tmp_path, "params.bias", extra_arrays={"params.users.table": values})
    with pytest.raises(CheckpointError, match=r"parameter users\.table is float32"):
        parameters.read("users/table")
    assert parameters.read("bias").tolist() == [0, 0, 0]


@pytest.mark.parametrize(("count", "more"), [(5, ""), (6, " and 1 more"), (8, " and 3 more")])
def test_up_to_five_missing_parameters_are_named(count: int, more: str, tmp_path: Path) -> None:
    write_item(tmp_path / "checkpoint", {"other": np.zeros(2, np.float32)})
    sizes: dict[str, tuple[int, ...]] = {f"p{number}": (3,) for number in range(count)}
    model = JaxFunctions(shapes(**sizes), {})
    parameters = StoredParameters(model, open_checkpoint(tmp_path / "checkpoint"), "")
    with pytest.raises(CheckpointError) as caught:
        parameters.find(model.leaves)
    message = str(caught.value)
    assert message.count("is not in the checkpoint") == 5
    assert f"parameter p4 [3] is not in the checkpoint{more}. The model code" in message


def test_lists_without_names_are_told(tmp_path: Path) -> None:
    lists = {f"0.{number}": np.zeros(2, np.float32) for number in range(2)}
    with pytest.raises(CheckpointError, match="It holds the parameters as lists"):
        stored(tmp_path / "lists", extra_arrays=lists).find(PATHS)
    named = {**lists, "0.name": np.zeros(2, np.float32)}
    with pytest.raises(CheckpointError, match="The model code is not the one that was saved"):
        stored(tmp_path / "named", extra_arrays=named).find(PATHS)


def test_matrices_beside_the_parameters_are_unread(tmp_path: Path) -> None:
    matrix = np.zeros((2, 2), np.float32)
    extra_arrays = {
        "params.more.kernel": matrix,
        "params.more.bias": np.zeros(2, np.float32),
        "ema.kernel": matrix,
        "paramsets.kernel": matrix,
        "params.a": matrix,
    }
    parameters = stored(tmp_path, "params.users.table", "params.bias", extra_arrays=extra_arrays)
    dense = ["params.users.table", "params.bias", *extra_arrays]
    assert list(parameters.unread(dense)) == ["params.a", "params.more.kernel"]
    assert parameters.unread(["ema.kernel"]) == {}


def test_matrices_beside_parameters_without_a_name_are_unread(tmp_path: Path) -> None:
    parameters = stored(
        tmp_path, "users.table", "bias", extra_arrays={"kernel": np.zeros((2, 2), np.float32)}
    )
    assert list(parameters.unread(["kernel", "bias"])) == ["kernel"]
