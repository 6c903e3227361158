"""`scripts/mutate`: it reports which changes of a package the tests notice."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "mutate"

PRICES = """
def price(count, each):
    if count > 10:
        each = each - 1
    return count * each


def never_called():
    return 1 + 2
"""

TESTS = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
import pytest
from shop.prices import price

@pytest.fixture(scope="module")
def three():
    return price(3, 20)

def test_three(three):
    assert three == 60

def test_three_in_another_process():
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        assert pool.submit(price, 3, 20).result() == 60

def test_many():
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(price, 20, 5).result() == 80
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in {"shop/prices.py": PRICES, "tests/test_prices.py": TESTS}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.nightly
@pytest.mark.slow
def test_mutate_prints_each_change_with_the_first_test_that_fails(checkout: Path) -> None:
    command = [sys.executable, "scripts/mutate", "--sample", "99", "shop", "tests"]

    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)

    message = sorted(line for line in done.stdout.splitlines() if line.startswith("shop/"))
    noticed = [line.partition(" tests/")[0] for line in message if "NOT NOTICED" not in line]
    assert noticed == [
        "shop/prices.py:4: `1` -> `2`: FAILED",
        "shop/prices.py:4: `each - 1` -> `(each + 1)`: FAILED",
        "shop/prices.py:5: `count * each` -> `(count // each)`: FAILED",
    ]
    assert [line for line in message if "NOT NOTICED" in line] == [
        "shop/prices.py:3: `10` -> `11`: NOT NOTICED by 3 tests",
        "shop/prices.py:3: `count > 10` -> `(count >= 10)`: NOT NOTICED by 3 tests",
    ]
    assert done.stdout.endswith("3 of 5 changes noticed, seed 0\n")
    assert (checkout / "shop/prices.py").read_text() == PRICES
