"""PLE with three heads: named, singly, and combined by the recipe's formula or the request's."""

import json

import pytest

from tests.repository.examples.showing import Serve, ServedExample


@pytest.fixture(scope="module")
def ple(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> ServedExample:
    return serve("ple", tmp_path_factory.mktemp("ple"))


def test_service_ranks_ple_as_tensorflow_does(ple: ServedExample) -> None:
    assert ple.within
    assert ple.manifest.towers["ranking"].formula == "click^0.7 * like^0.3"


def test_tower_is_cut_into_what_a_context_needs_what_heads_share_and_the_heads(
    ple: ServedExample,
) -> None:
    tower = ple.manifest.towers["ranking"]
    assert [part.name for part in tower.parts] == [
        "context",
        "trunk",
        "head-click",
        "head-like",
        "head-watch",
    ]
    forms = [*tower.forms, *(form for part in tower.parts for form in part.forms)]
    assert [form.kind for form in forms] == ["saved_model", "litert"] * 6


def test_requests_select_heads_by_name_by_formula_and_for_stored_users(ple: ServedExample) -> None:
    bodies = [json.loads(line) for line in (ple.folder / "requests.jsonl").read_text().splitlines()]
    assert {"heads": ["watch"], "formula": "watch"}.items() <= bodies[2].items()
    named = [body for body in bodies if "context_id" in body]
    assert named
    assert all(body["context"].keys() == {"hour"} for body in named)
