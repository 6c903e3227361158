"""The layout that the example writes is the one of jax-tpu-embedding itself."""

import pytest

from export.checkpoint.inventory.layout_file import read_embedding_spec


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
