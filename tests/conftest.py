"""Fixtures that tests of several packages use, and what pytest needs to run them."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.bundles.sample import write_sample_bundle
from tests.leftovers import end_what_this_process_leaves
from tests.missing_packages import skip_marked, skip_where_missing

if TYPE_CHECKING:
    from tests.bundles.small import SmallBundle

# JAX sets it to 1 when it is imported, and programs that tests start would log what TensorFlow
# finds.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
# Where TensorFlow is loaded, gRPC would write to stderr, in the middle of any test, that a server
# has closed an idle connection.
os.environ["GRPC_VERBOSITY"] = "ERROR"
# Exports in tests start no process that loads the bundle, but in the tests of that process.
os.environ["ROWCAST_EXPORT_LOAD"] = "false"

EXAMPLES = 100
"""How many cases Hypothesis draws."""
# It draws them from fixed seeds, so that a run is repeatable; a thorough run draws others. No test
# has a deadline, since machines differ in speed.
settings.register_profile(
    "fixed", derandomize=True, deadline=None, max_examples=EXAMPLES, database=None
)
settings.load_profile("fixed")


COSTLY_FOLDERS = (
    "tests/e2e/",
    "tests/repository/benchmarks/",
    "tests/differential/",
    "tests/units/export/jobs/",
)
"""Folders whose files run first, so that the processes that share the files end at about the same
time.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--thorough", type=int, default=0, help="so many times as many random cases, drawn anew"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Lets the programs that tests start be interrupted by SIGINT, and ends them with the run.

    A shell that runs pytest in the background ignores the signal, and children inherit that.
    """
    times = config.getoption("--thorough", default=0)
    if times:
        examples = EXAMPLES * times
        settings.register_profile("thorough", deadline=None, max_examples=examples, database=None)
        settings.load_profile("thorough")
    end_what_this_process_leaves()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(COSTLY_FOLDERS))
    for item in items:
        skip_marked(item)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    call: pytest.CallInfo[Any] = report.call
    if call.excinfo is not None:
        skip_where_missing(report, call.excinfo.value, collector.path, 1)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None:
        line = item.reportinfo()[1] or 0
        skip_where_missing(report, call.excinfo.value, item.path, line + 1)
    return report


def pytest_collection_finish() -> None:
    """Exempts what was imported from garbage collection.

    A full collection takes a third of a second to traverse TensorFlow's modules.
    """
    gc.freeze()


@pytest.fixture(scope="session")
def committed_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sample bundle that no test may change."""
    return write_sample_bundle(tmp_path_factory.mktemp("bundles"))


@pytest.fixture
def sample_bundle(committed_bundle: Path, tmp_path: Path) -> Path:
    """A copy of the sample bundle, which a test may damage."""
    copy = tmp_path / "bundles" / "movies" / "1"
    shutil.copytree(committed_bundle, copy)
    return copy


@pytest.fixture(scope="session")
def small_towers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled towers of small bundles."""
    from tests.bundles.towers import compiled_towers

    return compiled_towers(tmp_path_factory.mktemp("towers"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty directory of bundles."""
    bundles = tmp_path / "bundles"
    bundles.mkdir()
    return bundles


@pytest.fixture(scope="session")
def originals() -> dict[str, SmallBundle]:
    """The small bundles that this run of the tests wrote, by their parameters.

    A copy is cheaper than another bundle: writing one syncs every file.
    """
    return {}


@pytest.fixture
def write(
    root: Path,
    small_towers: Path,
    originals: dict[str, SmallBundle],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., SmallBundle]:
    """`write_small_bundle` into `root`."""
    from tests.bundles.small import write_small_bundle

    def write(model: str = "movies", version: int = 1, **options: object) -> SmallBundle:
        parameters = repr((model, version, sorted(options.items())))
        if parameters not in originals:
            directory = tmp_path_factory.mktemp("originals")
            originals[parameters] = write_small_bundle(
                directory,
                small_towers,
                model,
                version,
                **options,  # type: ignore[arg-type]
            )
        original = originals[parameters]

        # Renamed when it is complete: a service may be polling the root.
        copy = root.parent / f"copied-{model}-{version}"
        shutil.copytree(original.directory, copy)
        (root / model).mkdir(exist_ok=True)
        return replace(original, directory=copy.rename(root / model / str(version)))

    return write
