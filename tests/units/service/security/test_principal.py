from __future__ import annotations

import pytest

from service.errors import PermissionDenied
from service.security.principal import Principal, authorize, authorize_all


@pytest.mark.parametrize("principal", [None, Principal("ranker")])
def test_authorize_without_a_list_of_models_allows_everything(principal: Principal | None) -> None:
    authorize(principal, "any")
    authorize_all(principal)


def test_authorize_with_a_list_of_models_allows_those_alone() -> None:
    ads = Principal("ads", frozenset({"ads"}))
    authorize(ads, "ads")
    with pytest.raises(PermissionDenied, match=r"model is 'other'; this token is for ads"):
        authorize(ads, "other")
    with pytest.raises(PermissionDenied, match=r"model is ''"):
        authorize(ads, "")
    with pytest.raises(PermissionDenied, match="every model"):
        authorize_all(ads)
    with pytest.raises(PermissionDenied, match="this token is for no model"):
        authorize(Principal("prometheus", frozenset()), "ads")
