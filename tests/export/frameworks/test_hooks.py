from __future__ import annotations

from typing import Any

from export.frameworks.hooks import hooked


def added(first: int, second: int = 2, *, third: int = 3) -> int:
    return first + second + third


def test_hooked_function_is_answered_under_every_name_and_put_back() -> None:
    bound = added

    def doubled(original: Any, **how: Any) -> int:
        return 2 * int(original(**how))

    with hooked(added, doubled):
        assert bound(1) == 12
        with hooked(added, doubled):
            assert bound(1, third=0) == 12
        assert bound(1, 1, third=1) == 6
    assert bound(1) == 6
