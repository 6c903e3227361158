from __future__ import annotations

from service.engine.scheduling.estimates import LatencyEstimates


def test_estimates_of_too_many_kinds_forget_the_one_not_observed_for_longest() -> None:
    estimates = LatencyEstimates()
    for kind in range(4096):
        estimates.observe(kind, 1.0)
    estimates.observe(0, 1.0)
    estimates.observe("new", 2.0)
    assert estimates.expected_s(0) == 1.0
    assert estimates.expected_s(1) is None
    assert estimates.expected_s(4095) == 1.0
    assert estimates.expected_s("new") == 2.0
