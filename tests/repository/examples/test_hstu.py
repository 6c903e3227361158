"""HSTU in Flax: the service finds what exact search over JAX's own vectors finds."""

import pytest

from bundle.format.manifest import EmbeddedFeature
from tests.repository.examples.showing import Serve, ServedExample

pytest.importorskip("flax")


@pytest.fixture(scope="module")
def hstu(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> ServedExample:
    return serve("hstu", tmp_path_factory.mktemp("hstu"))


def test_service_retrieves_and_embeds_as_jax_does(hstu: ServedExample) -> None:
    assert hstu.within


def test_histories_and_movies_read_one_table_and_padding_its_first_row(hstu: ServedExample) -> None:
    manifest = hstu.manifest
    assert set(manifest.tables) == {"movies"}
    history = manifest.features["history"]
    assert isinstance(history, EmbeddedFeature)
    assert (history.kind, history.unknown.rule, history.unknown.row) == ("sequence", "row", 0)
    assert {form.kind for form in manifest.towers["query"].forms} >= {"litert"}
