"""The metrics of one process and of several workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.observability.derived_metrics import population_stability, recall_estimate
from service.observability.merged_metrics import forget_ended, render
from service.observability.metrics import (
    COUNTERS,
    Metrics,
)

WORKER = """
import sys
from service.observability.metrics import Metrics
metrics = Metrics()
for line in sys.stdin:
    print(eval(line, {"metrics": metrics}), flush=True)
"""


def samples(rendered: bytes) -> dict[str, float]:
    """Values by name and labels, as `name{label=value,...}`, labels in alphabetical order."""
    rendered_values = {}
    for family in text_string_to_metric_families(rendered.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            rendered_values[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return rendered_values


class Worker:
    """A process with metrics in files of a directory, which evaluates expressions."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(directory)},
        )

    def run(self, *expressions: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        response = ""
        for expression in expressions:
            self.process.stdin.write(expression + "\n")
            self.process.stdin.flush()
            response = self.process.stdout.readline()
        return response

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[tuple[Worker, Worker]]:
    with ExitStack() as stack:
        started = Worker(tmp_path), Worker(tmp_path)
        for worker in started:
            stack.callback(worker.kill)
            worker.run("metrics.set('ready', 1)")
        yield started


@pytest.mark.parametrize("name", COUNTERS)
def test_counter_is_zero_before_the_first_count(name: str) -> None:
    metrics = Metrics()
    metrics.versions({"m": {"available": 1}}, {"m": 3})
    prefix = f"rowcast_{name}_total"
    series = {
        sample: value
        for sample, value in samples(metrics.render()).items()
        if sample.partition("{")[0] == prefix
    }
    if name == "page_faults":
        assert len(series) == 2
        return
    # Other models and shards are known once they respond.
    _, labels = COUNTERS[name]
    assert series or {*labels} & {"model", "shard"}
    assert {*series.values()} <= {0}


def test_model_that_does_not_exist_is_no_label() -> None:
    metrics = Metrics()
    metrics.versions({"m": {"available": 1}}, {"m": 3})
    metrics.request_finished("http", "rank", "made-up", "NOT_FOUND", 0.001, {"decode": 0.001})
    metrics.call_rejected("rank", "made-up", "queue")
    rendered = samples(metrics.render())
    assert not [sample for sample in rendered if "made-up" in sample]
    expected = {
        "rowcast_requests_total{call=rank,code=NOT_FOUND,model=,transport=http}": 1,
        "rowcast_rejected_requests_total{call=rank,model=,reason=queue}": 1,
        "rowcast_phase_seconds_count{call=rank,model=,phase=decode}": 1,
    }
    assert {key: rendered[key] for key in expected} == expected


def test_metrics_of_several_workers_are_those_of_the_service(
    workers: tuple[Worker, Worker], tmp_path: Path
) -> None:
    first_worker, second_worker = workers
    first_worker.run(
        "metrics.request_finished('http', 'rank', '', 'OK', 0.001, {})",
        "metrics.set('inflight_requests', 2)",
    )
    first_worker.run(
        "metrics.versions({'m': {'available': 1}}, {'m': 2})",
        "metrics.queued({'m': 2}, {'m': 200})",
        "metrics.set('desired_state_revision', 5)",
    )
    first_worker.run(
        "metrics.set('model_memory_bytes', 100, 'm')",
        "metrics.set('model_resident_table_bytes', 2000, 'm')",
        "metrics.batch_finished('rank', 'm', {}, {}, {('m', ('user',)): 3})",
        "metrics.flush()",
    )
    second_worker.run(
        "metrics.request_finished('http', 'rank', '', 'OK', 0.003, {})",
        "metrics.set('inflight_requests', 3)",
        "metrics.flush()",
    )
    second_worker.run(
        "metrics.versions({'m': {'available': 1, 'failed': 1}}, {'m': 1})",
        "metrics.queued({'m': 3}, {'m': 300})",
        "metrics.set('desired_state_revision', 4)",
    )
    second_worker.run(
        "metrics.set('model_memory_bytes', 100, 'm')",
        "metrics.set('model_resident_table_bytes', 2500, 'm')",
    )
    second_worker.run("metrics.set('ready', 0)")
    rendered = samples(render(tmp_path))
    expected = {
        "rowcast_requests_total{call=rank,code=OK,model=,transport=http}": 2,
        "rowcast_request_seconds_bucket{call=rank,le=0.001,model=,transport=http}": 1,
        "rowcast_request_seconds_count{call=rank,model=,transport=http}": 2,
        "rowcast_requests_total{call=rank,code=INTERNAL,model=,transport=http}": 0,
        "rowcast_workers": 2,
        "rowcast_ready": 0,
        "rowcast_inflight_requests": 5,
        "rowcast_queue_candidates{model=m}": 500,
        "rowcast_versions{model=m,state=available}": 1,
        "rowcast_versions{model=m,state=failed}": 1,
        "rowcast_current_version{model=m}": 2,
        "rowcast_desired_state_revision": 4,
        "rowcast_model_memory_bytes{model=m}": 200,
        "rowcast_model_resident_table_bytes{model=m}": 2500,
        "rowcast_feature_examples_total{feature=user,model=m}": 3,
    }
    assert {key: rendered[key] for key in expected} == expected


def test_derived_metrics_are_computed_from_the_sums_of_the_workers_that_run(
    workers: tuple[Worker, Worker], tmp_path: Path
) -> None:
    first_worker, second_worker = workers
    for worker, hits in ((first_worker, 900), (second_worker, 600)):
        for term, total in (("hits", hits), ("neighbors", 1000), ("squared_neighbors", 10_000)):
            worker.run(f"metrics.set('live_recall_window', {total}, 'm', 'i', '{term}')")
        for number, count in enumerate((300, 2100 - hits)):
            worker.run(f"metrics.set('score_window', {count}, 'm', 't', '{number}')")
            worker.run(f"metrics.set('score_baseline', 0.5, 'm', 't', '{number}')")
            worker.run(f"metrics.set('score_baseline', 0, 'm', 't', '{number + 2}')")
    expected = recall_estimate(1500, 2000, 20_000)
    stability = population_stability([600, 2700], [0.5, 0.5])
    rendered = samples(render(tmp_path))
    assert rendered["rowcast_live_recall{index=i,model=m}"] == expected.recall == 0.75
    assert rendered["rowcast_live_recall_low{index=i,model=m}"] == expected.low
    assert rendered["rowcast_live_recall_high{index=i,model=m}"] == expected.high
    assert rendered["rowcast_score_psi{model=m,tower=t}"] == pytest.approx(stability)

    second_worker.kill()
    forget_ended(tmp_path)
    rendered = samples(render(tmp_path))
    assert rendered["rowcast_live_recall{index=i,model=m}"] == 0.9
    assert rendered["rowcast_score_psi{model=m,tower=t}"] == pytest.approx(
        population_stability([300, 1200], [0.5, 0.5])
    )
    first_worker.run("metrics.set('score_window', 1, 'm', 't', '1')")
    assert "rowcast_score_psi{model=m,tower=t}" not in samples(render(tmp_path))
