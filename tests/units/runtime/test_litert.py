from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.errors import InvalidInput, TowerUnreadable
from runtime.litert import CompiledTower

F32 = "compiled-f32.tflite"
INT8 = "compiled-int8.tflite"


def _query_inputs(n: int) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(n)
    return {
        "user": random.normal(size=(n, 32)).astype(np.float32),
        "history": random.normal(size=(n, 64)).astype(np.float32),
    }


def _query_reference(towers: Path, inputs: dict[str, NDArray[np.float32]]) -> NDArray[np.float64]:
    with np.load(towers / "weights.npz") as weights:
        joined = np.hstack([inputs["user"], inputs["history"]]).astype(np.float64)
        vectors: NDArray[np.float64] = (
            np.maximum(joined @ weights["query_in"], 0) @ weights["query_out"]
        )
    return vectors


@pytest.mark.parametrize("n", [1, 2, 7, 300])
def test_compiled_tower_any_batch_equals_float64(towers: Path, n: int) -> None:
    tower = CompiledTower(towers / "query" / F32)
    inputs = _query_inputs(n)

    outputs = tower.run(inputs)

    assert outputs["vector"].dtype == np.float32
    np.testing.assert_allclose(
        outputs["vector"], _query_reference(towers, inputs), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(
        outputs["norm"], (inputs["user"].astype(np.float64) ** 2).sum(1), rtol=1e-5
    )


def test_compiled_tower_computes_in_the_thread_that_calls_it(towers: Path) -> None:
    CompiledTower(towers / "query" / F32).run(_query_inputs(300))  # what starts once starts now
    tasks = Path("/proc/self/task")
    before = {task.name for task in tasks.iterdir()}
    tower = CompiledTower(towers / "query" / F32)
    tower.run(_query_inputs(300))
    assert {task.name for task in tasks.iterdir()} <= before


def test_compiled_tower_names_and_shapes_are_the_signature(towers: Path) -> None:
    tower = CompiledTower(towers / "typed" / F32)

    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in tower.inputs] == [
        ("hour", "int64", (None,)),
        ("watched", "float32", (None, 5, 4)),
    ]
    assert [(tensor.name, tensor.shape) for tensor in tower.outputs] == [("sum", (None,))]


def test_compiled_tower_integer_and_sequence_inputs_are_taken(towers: Path) -> None:
    tower = CompiledTower(towers / "typed" / F32)
    watched = np.arange(40, dtype=np.float32).reshape(2, 5, 4)

    outputs = tower.run({"watched": watched, "hour": np.array([3, 23])})

    np.testing.assert_array_equal(outputs["sum"], [sum(range(20)) + 3, sum(range(20, 40)) + 23])


@pytest.mark.parametrize("form", [F32, INT8])
def test_compiled_tower_rows_are_bit_equal_in_any_batch(towers: Path, form: str) -> None:
    tower = CompiledTower(towers / "ranking" / form)
    x = np.random.default_rng(3).normal(size=(500, 40)).astype(np.float32)
    whole = tower.run({"x": x})["score"]

    for first, size in [(0, 1), (499, 1), (0, 2), (13, 3), (7, 16), (100, 200), (1, 499)]:
        part = tower.run({"x": x[first : first + size]})["score"]

        assert part.tobytes() == whole[first : first + size].tobytes()


def test_compiled_tower_int8_is_near_f32_but_not_equal(towers: Path) -> None:
    inputs = _query_inputs(200)
    exact = CompiledTower(towers / "query" / F32).run(inputs)["vector"]

    quantized = CompiledTower(towers / "query" / INT8).run(inputs)["vector"]

    assert np.corrcoef(exact.ravel(), quantized.ravel())[0, 1] > 0.999
    assert not np.array_equal(exact, quantized)


def test_compiled_tower_outputs_are_owned_by_the_caller(towers: Path) -> None:
    tower = CompiledTower(towers / "query" / F32)
    first = tower.run(_query_inputs(2))["vector"]
    copy = first.copy()

    first_again = tower.run(_query_inputs(5))["vector"]
    first_again[:] = 0

    np.testing.assert_array_equal(first, copy)


def test_compiled_tower_called_by_many_threads_returns_to_each_its_own_outputs(
    towers: Path,
) -> None:
    tower = CompiledTower(towers / "query" / F32)
    wanted = {
        n: CompiledTower(towers / "query" / F32).run(_query_inputs(n))["vector"]
        for n in range(1, 9)
    }
    wrong: list[int] = []
    start = threading.Barrier(8)

    def call(n: int) -> None:
        inputs = _query_inputs(n)
        start.wait()
        wrong.extend(
            n for _ in range(200) if not np.array_equal(tower.run(inputs)["vector"], wanted[n])
        )

    threads = [threading.Thread(target=call, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


@pytest.mark.parametrize("form", [F32, INT8])
def test_compiled_tower_takes_inputs_from_its_buffers(towers: Path, form: str) -> None:
    tower = CompiledTower(towers / "query" / form)
    second_tower = CompiledTower(towers / "query" / form)
    for n in (5, 3, 3, 200, 5):
        inputs = _query_inputs(n)
        buffers = tower.buffers(n)
        assert {name: (buffer.shape, buffer.dtype) for name, buffer in buffers.items()} == {
            name: (value.shape, value.dtype) for name, value in inputs.items()
        }
        buffers["user"][...] = inputs["user"]
        buffers["history"][...] = inputs["history"]
        wanted = second_tower.run(inputs)
        np.testing.assert_array_equal(tower.run(buffers)["vector"], wanted["vector"])
        swapped = tower.run({**buffers, "user": inputs["user"][::-1].copy()})["norm"]
        np.testing.assert_array_equal(swapped, wanted["norm"][::-1])
        np.testing.assert_array_equal(buffers["user"], inputs["user"])


def test_compiled_tower_buffers_are_each_threads_own_and_used_again(towers: Path) -> None:
    tower = CompiledTower(towers / "query" / F32)
    first = tower.buffers(8)
    reused = tower.buffers(5)
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(tower.buffers(8)))
    thread.start()
    thread.join(20)

    assert np.shares_memory(first["user"], reused["user"])
    assert not np.shares_memory(first["user"], elsewhere[0]["user"])


def test_compiled_tower_of_a_fixed_batch_has_no_buffers(towers: Path) -> None:
    assert CompiledTower(towers / "single" / F32).buffers(1) == {}


def test_compiled_tower_no_examples_gives_empty_outputs(towers: Path) -> None:
    tower = CompiledTower(towers / "query" / F32)

    outputs = tower.run(_query_inputs(0))

    assert {name: value.shape for name, value in outputs.items()} == {
        "norm": (0,),
        "vector": (0, 64),
    }
    assert tower.run(_query_inputs(2))["vector"].shape == (2, 64)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"user": None}, "lacks inputs ['user']"),
        (
            {"user": np.zeros((2, 31), np.float32)},
            "input 'user' has shape (2, 31); [any, 32] was expected",
        ),
        (
            {"user": np.zeros(32, np.float32)},
            "input 'user' has shape (32,); [any, 32] was expected",
        ),
        ({"user": np.zeros((2, 32))}, "input 'user' has dtype float64; float32 was expected"),
        ({"user": np.zeros((3, 32), np.float32)}, "takes no inputs of shapes"),
    ],
)
def test_compiled_tower_wrong_input_is_rejected_and_the_next_call_works(
    towers: Path, changed: dict[str, NDArray[np.float32] | None], message: str
) -> None:
    tower = CompiledTower(towers / "query" / F32)
    inputs = _query_inputs(2)
    wrong = {name: value for name, value in (inputs | changed).items() if value is not None}

    with pytest.raises(InvalidInput) as rejection:
        tower.run(wrong)

    assert message in str(rejection.value)
    assert tower.run(inputs)["vector"].shape == (2, 64)


def test_compiled_tower_fixed_batch_takes_that_batch_only(towers: Path) -> None:
    tower = CompiledTower(towers / "single" / F32)

    np.testing.assert_array_equal(
        tower.run({"context": np.ones((1, 3), np.float32)})["vector"], [[2, 2, 2]]
    )
    with pytest.raises(InvalidInput, match=r"\[1, 3\] was expected"):
        tower.run({"context": np.ones((2, 3), np.float32)})


def test_compiled_tower_nan_is_passed_on(towers: Path) -> None:
    inputs = _query_inputs(2)
    inputs["user"][1, 0] = np.nan

    vectors = CompiledTower(towers / "query" / F32).run(inputs)["vector"]

    assert np.isfinite(vectors[0]).all()
    assert np.isnan(vectors[1]).all()


@pytest.mark.parametrize("content", [b"", b"not a tower", bytes(64), b"\x1c\0\0\0TFL3" + bytes(64)])
def test_compiled_tower_other_bytes_are_unreadable(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / F32
    path.write_bytes(content)

    with pytest.raises(TowerUnreadable, match=F32):
        CompiledTower(path)


def test_compiled_tower_truncated_or_missing_file_is_unreadable(
    towers: Path, tmp_path: Path
) -> None:
    path = tmp_path / F32
    content = (towers / "query" / F32).read_bytes()
    path.write_bytes(content[: len(content) // 2])

    with pytest.raises(TowerUnreadable, match="LiteRT"):
        CompiledTower(path)
    with pytest.raises(TowerUnreadable, match="cannot be read"):
        CompiledTower(tmp_path / "gone.tflite")


def test_compiled_tower_prepared_and_released_threads_give_the_same_bits(towers: Path) -> None:
    tower = CompiledTower(towers / "query" / F32)
    inputs = _query_inputs(3)
    tower.prepare_thread()
    results: list[dict[str, NDArray[Any]]] = [tower.run(inputs)]
    tower.prepare_thread()
    tower.release_thread()
    tower.release_thread()  # nothing is left to release
    for _ in range(4):  # nothing is prepared for the last one
        thread = threading.Thread(target=lambda: results.append(tower.run(inputs)))
        thread.start()
        thread.join(20)
    results.append(tower.run(inputs))
    assert len(results) == 6
    for name, array in results[0].items():
        assert {outputs[name].tobytes() for outputs in results} == {array.tobytes()}
