"""Self-attention over a masked, truncated history: the service responds as the model did."""

import json

import pytest

from bundle.format.manifest import DenseFeature, EmbeddedFeature
from tests.repository.examples.showing import Serve, ServedExample


@pytest.fixture(scope="module")
def sequence(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> ServedExample:
    return serve("sequence", tmp_path_factory.mktemp("sequence"))


def test_service_ranks_the_sequence_model_as_tensorflow_does(sequence: ServedExample) -> None:
    assert sequence.within
    assert [form.kind for form in sequence.manifest.towers["ranking"].forms] == [
        "saved_model",
        "litert",
    ]


def test_history_is_a_sequence_whose_lengths_make_the_mask(sequence: ServedExample) -> None:
    history = sequence.manifest.features["history@movies"]
    lengths = sequence.manifest.features["history@lengths"]
    assert isinstance(history, EmbeddedFeature)
    assert isinstance(lengths, DenseFeature)
    assert (history.kind, history.length, history.table) == ("sequence", 5, "movies")
    assert (lengths.take, lengths.inputs) == ("lengths", ("history",))


def test_requests_hold_histories_shorter_and_longer_than_the_model_looks(
    sequence: ServedExample,
) -> None:
    bodies = [
        json.loads(line) for line in (sequence.folder / "requests.jsonl").read_text().splitlines()
    ]
    lengths = {len(body["context"]["history"]) for body in bodies}
    assert min(lengths) < 5 < max(lengths)
