"""Activations of jax-tpu-embedding's features: the service combines rows as training did."""

import pytest

from bundle.format.manifest import EmbeddedFeature
from export.checkpoint.inventory.layout_file import read_embedding_spec
from tests.repository.examples.showing import Serve, ServedExample

pytest.importorskip("flax")


@pytest.fixture(scope="module")
def ranker(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> ServedExample:
    return serve("jax_tpu_embedding", tmp_path_factory.mktemp("ranker"))


def test_service_scores_as_jax_does(ranker: ServedExample) -> None:
    assert ranker.within


def test_features_have_the_tables_and_combiners_of_their_specifications(
    ranker: ServedExample,
) -> None:
    features = {
        name: (feature.table, feature.combiner)
        for name, feature in ranker.manifest.features.items()
        if isinstance(feature, EmbeddedFeature)
    }
    assert features == {
        "user_id": ("users", None),
        "history": ("movies", "mean"),
        "hour": ("hours", None),
        "movie_id": ("movies", None),
        "genres": ("genres", "sqrtn"),
    }


def test_tables_that_share_a_stack_come_from_one_array(ranker: ServedExample) -> None:
    sources = {name: table.source for name, table in ranker.manifest.tables.items()}
    assert sources["users"].key == sources["movies"].key == "embedding.movies_users.table"
    assert sources["hours"].key == "embedding.hours.table"
    assert {source.layout for source in sources.values()} == {"sparse_core"}


def test_layout_is_the_one_of_jax_tpu_embedding() -> None:
    pytest.importorskip("jax_tpu_embedding")
    import jax
    from jax_tpu_embedding.sparsecore.lib.nn import embedding, embedding_spec, table_stacking

    from examples.jax_tpu_embedding import stacks
    from examples.jax_tpu_embedding.model import Sizes, feature_specs, table_specs

    sizes = Sizes(users=611, movies=9_700, genres=19, dim=32, hidden=64)
    tables = {
        name: embedding_spec.TableSpec(
            **spec,
            initializer=jax.nn.initializers.zeros,
            optimizer=embedding_spec.AdagradOptimizerSpec(),
        )
        for name, spec in table_specs(sizes).items()
    }
    specs = {}
    for name, spec in feature_specs(sizes).items():
        table = tables[spec["table_spec"]["name"]]
        shape = (32, table.embedding_dim)
        specs[name] = embedding_spec.FeatureSpec(
            name=name, table_spec=table, input_shape=(32, 4), output_shape=shape
        )
    devices = {
        "global_device_count": stacks.DEVICES,
        "num_sc_per_device": stacks.CORES_PER_DEVICE,
    }
    table_stacking.auto_stack_tables(specs, **devices)
    embedding.prepare_feature_specs_for_training(specs, **devices)
    message = embedding.create_proto_from_feature_specs(specs, *devices.values())

    ours = stacks.layout(stacks.stacks_of(table_specs(sizes))).encode()
    theirs = read_embedding_spec(message.SerializeToString(), text=False)
    assert read_embedding_spec(ours, text=True) == theirs
