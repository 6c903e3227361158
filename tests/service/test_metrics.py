"""Metrics of one service, apart from those of another in the same process."""

from __future__ import annotations

from service.metrics import Metrics


def test_two_services_in_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.answered("http", "rank", "OK", 0.01)
    assert one.registry.get_sample_value("rowcast_requests_total", {"door": "http", "call": "rank", "code": "OK"}) == 1
    assert b'rowcast_requests_total{call="rank"' in one.render()
    assert b'rowcast_requests_total{call="rank"' not in other.render()


def test_versions_that_are_gone_are_no_longer_told() -> None:
    metrics = Metrics()
    metrics.versions([("m", 1, "available"), ("m", 2, "loading")])
    metrics.versions([("m", 2, "available")])
    page = metrics.render().decode()
    assert 'rowcast_version{model="m",state="available",version="2"} 1.0' in page
    assert 'version="1"' not in page
