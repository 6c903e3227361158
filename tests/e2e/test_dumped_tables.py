"""A model with dumped tables: from files that SOK and HugeCTR wrote to responses of a service."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rowcast_client import Client

from export.cli.main import main
from export.graphs.loading import load_tensorflow
from tests.e2e.process import WAIT_S
from tests.units.export.checkpoint.dump_files import collection_dump, hugectr_dump, sok_dump
from tests.units.export.movies_job import toml
from tests.units.export.traced_models import MODELS
from tests.units.service.running import RunningService

pytestmark = pytest.mark.slow

USERS = 3000
ITEMS = 500
RECIPE: dict[str, Any] = {
    "model": "shop",
    "checkpoint": {"path": "checkpoint", "object_path": "model"},
    "code": {"factory": "dumped.py:build", "table_threshold": 100},
    "output": {"root": "bundles"},
    "inputs": {
        "user": {"dtype": "int64"},
        "hour": {"dtype": "int64"},
        "item": {"dtype": "int64"},
        "history": {"dtype": "int64", "kind": "ragged"},
    },
    "towers": {"ranking": {"role": "ranking"}},
    "features": {
        "user": {"ids": {"kind": "keyed"}},
        "history": {"ids": {"kind": "keyed"}},
        "item": {"role": "candidate", "ids": {"kind": "keyed"}},
    },
    "tables": {
        "users": {"dump": "dumps/sok"},
        "user_bias": {"dump": "dumps/collections", "key": "collection_0_table_1"},
        "items": {"dump": "dumps/items"},
    },
    "verify": {"count": 32},
}


@dataclass(frozen=True)
class Shop:
    """The project's folder, the keys of its dumps, and the model that holds all their rows under
    their positions.
    """

    folder: Path
    users: NDArray[np.int64]
    items: NDArray[np.int64]
    original: Any

    def scores(
        self, user: int, hour: int, history: list[int], items: list[int]
    ) -> NDArray[np.float32]:
        tf = load_tensorflow()
        n = len(items)
        places = {int(key): place for place, key in enumerate(self.items)}
        person = int(np.flatnonzero(self.users == user)[0])
        inputs = {
            "user": tf.fill([n], tf.constant(person, tf.int64)),
            "hour": tf.fill([n], tf.constant(hour, tf.int64)),
            "item": tf.constant([places[item] for item in items], tf.int64),
            "history": tf.ragged.constant(
                [[places[item] for item in history]] * n, tf.int64, ragged_rank=1
            ),
        }
        return np.asarray(self.original(inputs))


def export(*arguments: object) -> tuple[Any, str]:
    """Runs the command line in this process; returns its exit code and all that it printed."""
    output = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
    ):
        patch.setattr(sys, "argv", ["rowcast-export", *map(str, arguments)])
        with pytest.raises(SystemExit) as finished:
            main()
    return finished.value.code, output.getvalue()


def write_recipe(folder: Path, **parts: Any) -> Path:
    path = folder / "recipe.toml"
    path.write_text("\n".join(f"{key} = {toml(value)}" for key, value in (RECIPE | parts).items()))
    return path


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    folder = tmp_path_factory.mktemp("shop")
    random = np.random.default_rng(9)
    tf = load_tensorflow()
    from tests.models.dumped import build

    tf.keras.utils.set_random_seed(4)
    original = build(USERS, ITEMS)
    small = build()
    tf.train.Checkpoint(model=small).write(str(folder / "checkpoint"))
    for name in ("hours", "deep"):
        getattr(original, name).set_weights(getattr(small, name).get_weights())
    users = np.unique(random.integers(0, 2**62, 2 * USERS))[:USERS]
    items = random.permutation(np.unique(random.integers(0, 2**40, 2 * ITEMS))[:ITEMS])
    rows = {
        size: random.standard_normal(size).astype(np.float32)
        for size in ((USERS, 8), (USERS, 1), (ITEMS, 8))
    }
    original.users.set_weights([rows[USERS, 8]])
    # The second table of the same users was dumped in another order.
    order = random.permutation(USERS)
    original.user_bias.set_weights([rows[USERS, 1]])
    original.items.embedding_tables[next(iter(original.items.embedding_tables))].assign(
        rows[ITEMS, 8]
    )
    sok_dump(folder / "dumps/sok", "users_0", users, rows[USERS, 8], accumulator=rows[USERS, 8])
    sok_dump(folder / "dumps/sok", "bias_0", users[order].astype(np.uint64), rows[USERS, 1][order])
    collection_dump(
        folder / "dumps/collections",
        [(users, rows[USERS, 8]), (users[order], rows[USERS, 1][order])],
    )
    hugectr_dump(folder / "dumps/items", items, rows[ITEMS, 8], np.zeros(ITEMS, np.uint64))
    shutil.copy(MODELS / "dumped.py", folder)
    return Shop(folder, users, items, original)


@pytest.fixture(scope="module")
def served(shop: Shop) -> Iterator[RunningService]:
    code, output = export("run", write_recipe(shop.folder))
    assert code == 0, output
    service = RunningService(shop.folder / "bundles")
    yield service
    service.close()


def test_service_looks_up_by_keys_as_the_original_does(shop: Shop, served: RunningService) -> None:
    history = [int(key) for key in shop.items[[4, 7, 4, 499]]]
    candidates = [int(key) for key in shop.items[::25]]
    user = int(shop.users[2999])
    request = {"user": user, "hour": 13, "history": history}
    for url in (served.http, f"grpc://{served.grpc}"):
        with Client(url, timeout_s=WAIT_S) as client:

            def scores(context: dict[str, Any], client: Client = client) -> list[float]:
                (response,) = client.rank(
                    context, candidate_features={"item": candidates}, model="shop"
                )
                return [each.score for each in response]

            actual = scores(request)
            np.testing.assert_allclose(
                actual, shop.scores(user, 13, history, candidates), rtol=1e-4, atol=1e-5
            )
            # 5 is not an item.
            np.testing.assert_allclose(
                scores(request | {"history": [5, *history]}), actual, rtol=1e-5
            )


@pytest.mark.usefixtures("served")
def test_verify_compares_a_bundle_with_its_dumps(shop: Shop) -> None:
    code, output = export(
        "verify", shop.folder / "bundles/shop/1", "--recipe", write_recipe(shop.folder), "--full"
    )
    assert code == 0, output
    assert re.search(r"table user_bias +the checkpoint +3,000 of 3,000 rows equal", output)


def test_plan_of_a_dump_that_does_not_fit_reports_what_to_set(shop: Shop) -> None:
    tables = RECIPE["tables"]
    for changed, code, words in (
        ({}, 2, "has no keys; name the dump that has them as tables."),
        (tables | {"user_bias": {"dump": "dumps/sok", "key": "bias"}}, 2, "did you mean 'bias_0'"),
        (tables | {"user_bias": {"dump": "dumps/items"}}, 3, "is [500, 1] in the model"),
    ):
        actual, printed = export("plan", write_recipe(shop.folder, tables=changed))
        assert (actual, words in printed) == (code, True), printed
