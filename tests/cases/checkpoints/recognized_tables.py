"""What a checkpoint holds, and what is recognized of it: tables, states of optimizers, the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.cases.checkpoints.inspections import Write
from tests.cases.checkpoints.written import (
    COUNT,
    STACKED,
    TABLE,
    Leaf,
    Slots,
    Tree,
    layer,
    leaves,
    names,
    objects,
    stacks,
    tensors,
    weights,
)
from tests.units.export.checkpoint.tensor_bundles import SUFFIX


@dataclass(frozen=True)
class Found:
    """What `inspect` lists; keys without the suffix of TensorFlow.

    Attributes:
      write: Writes the checkpoint.
      tables: The key of each table.
      origin: The origin of all tables, or "": any.
      slots: By the key of each slot variable, its name and the key of the variable that it is of;
        None: any.
      rejected: Words of the reason of each table that is rejected.
      step: The step.
      candidates: Keys of variables that may be tables, separated by spaces; None: any.
      note: Words of the note of the only table.
    """

    write: Write
    tables: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""
    slots: Mapping[str, tuple[str, str | None]] | None = field(default_factory=dict)
    rejected: Mapping[str, str] = field(default_factory=dict)
    step: int | None = None
    candidates: str | None = None
    note: str = ""


USER = "user/embeddings"
KERAS = "Keras Embedding"


def slot_of_name(key: str, name: str = "") -> Found:
    """A variable of TF1 beside a variable `scope/emb`; a slot of it if it has a name."""
    slots = {key: (name, "scope/emb")} if name else {}
    return Found(names(["scope/emb", key]), slots=slots)


NAMES: dict[str, Found] = {
    "layers of one name": Found(
        names(["a/x/user/embeddings", "b/user/embeddings", "item/embeddings"]),
        {
            "a.x.user": "a/x/user/embeddings",
            "b.user": "b/user/embeddings",
            "item": "item/embeddings",
        },
    ),
    "name without a layer": Found(names(["embeddings", "user/my_embeddings", f"{USER}/bias"])),
    "no rows": Found(names({USER: TABLE[:0]})),
    "slices of rows": Found(
        names([USER], user__embeddings=[4, 4]), {"user": USER}, note="--mod NAME"
    ),
    **{
        f"slot {key:.40}": slot_of_name(key, name)
        for key, name in (
            ("scope/emb/Adagrad_2", "Adagrad_2"),
            ("scope/emb/ExponentialMovingAverage", "ExponentialMovingAverage"),
            ("scope/emb/AdagradMomentum/Accumulator", "AdagradMomentum/Accumulator"),
            ("t/scope/emb/Adam_1", "Adam_1"),
            ("training/Adam_1/scope/emb/vhat", "vhat"),
            ("s/" * 31 + "scope/emb/Adam", "Adam"),
            ("s/" * 32 + "scope/emb/Adam", ""),
            ("x/scope/emb/m", ""),
            ("scope/emb/adamant", ""),
        )
    },
    "slot of another shape": Found(names({"scope/emb": TABLE, "scope/emb/Adam": TABLE[:4]})),
    "state of a user's optimizer": Found(
        names(["a", "a/mine", "b", "b/mine", "a/other"]),
        slots={"a/mine": ("mine", "a"), "b/mine": ("mine", "b")},
    ),
    "state of a table": Found(
        names([USER, f"{USER}/mine", "a", "a/b"]),
        {"user": USER},
        slots={f"{USER}/mine": ("mine", USER)},
    ),
    "powers of Adam": Found(
        names({"beta1_power": COUNT * 0.5, "temperature": COUNT * 1.0, "x/beta1_power": TABLE}),
        slots={"beta1_power": ("beta1_power", None)},
    ),
    "step": Found(names({"step": np.array(3), "global_step": np.array(4)}), step=4),
}


def of(key: str, name: str = "", values: Any = TABLE) -> Leaf:
    return Leaf(key, name, values)


A, B, C = map(Leaf, "abc")
USERS = {"parameters": A, "m": C}
EMBEDDING = {"_variables": {"users": USERS, "items": {"parameters": B}}}
TWO = {"users": "a", "items": "b"}
SLOT_C = {"c": ("m", "a")}


def steps(**counts: Any) -> Write:
    """Returns what writes a program's steps, and the counts of its optimizers."""
    variables = {name: of(name, values=count) for name, count in counts.items()}
    tree: Tree = {name: variables[name] for name in ("step", "global_step") if name in variables}
    for name in ("first", "second"):
        if name in variables:
            tree[f"o{name}"] = {"_iterations": variables[name]}
    if "older" in variables:
        tree["o3"] = Slots({"iter": variables["older"]}, [(A, "m", C)])
    if "none" in variables:
        tree["o4"] = {"iter": variables["none"]}
    return objects(tree)


def optimizer(*states: Leaf, **children: Any) -> Write:
    """Returns what writes tables and an optimizer that lists its states."""
    count = of("n", "iterations", COUNT)
    listed = {"0": count, **{str(n): state for n, state in enumerate(states, 1)}}
    trained = children.pop("trained", [])
    tree: Tree = {"_iterations": count, "_variables": listed}
    if trained:
        tree["_trainable_variables"] = {str(n): leaf for n, leaf in enumerate(trained)}
    siblings = {name: children.pop(name) for name in tuple(children) if name[0] != "_"}
    return objects({"optimizer": tree | children, **siblings})


USER_A = of("a", "user/embeddings")
KERNELS = {"x": of("x", "dense/kernel"), "y": of("y", "dense/kernel")}


def named_state(full_name: str, name: str, owner: str | None, values: Any = TABLE) -> Found:
    """A state that is named after a variable which the optimizer trains, or not."""
    trained = [USER_A, *KERNELS.values()]
    return Found(
        optimizer(of("s", full_name, values), trained=trained, item=of("i", "item/embeddings")),
        {"user": "a", "item": "i"},
        slots={"s": (name, owner)},
        step=7,
    )


OBJECTS: dict[str, Found] = {
    "objects without parameters": Found(
        objects({"o": {"_variables": {"0": A, "1": B}}, "p": {"_variables": {}}}),
        candidates="a b",
    ),
    "tables of one name": Found(
        objects(
            {
                name: {"_variables": {"ids": {"parameters": leaf}}}
                for name, leaf in (("q", A), ("c", B))
            }
        ),
        {"q.ids": "a", "c.ids": "b"},
    ),
    "variable of two objects": Found(
        objects({"first": EMBEDDING, "second": {"_variables": {"people": {"parameters": A}}}}),
        TWO,
        slots=SLOT_C,
        rejected={"people": "another embedding object"},
    ),
    "table called like a slot": Found(
        objects(
            {
                "e": {
                    "_variables": {
                        "a": {"parameters": of("e/a"), "acc": of("e/a.S2acc")},
                        "a/acc": {"parameters": of("e/a.Sacc")},
                    }
                }
            }
        ),
        {"a": "e/a", "a/acc": "e/a.Sacc"},
        slots={"e/a.S2acc": ("acc", "e/a")},
    ),
    "table that was not saved": Found(
        objects({"e": {"_variables": {"t": {"parameters": of("t", values=None), "m": C}}}}),
        slots={"c": ("m", "t")},
        rejected={"t": "not saved"},
    ),
    "table of one axis": Found(
        objects({"e": {"_variables": {"t": {"parameters": of("t", values=TABLE[0])}}}}),
        rejected={"t": "[3]"},
    ),
    "stack without a layout": Found(
        stacks(STACKED[0]._replace(stack="a"), values={"a": np.zeros((128, 8), "f4"), "b": TABLE}),
        {"users": "e/a"},
        "TPUEmbedding",
        {"e/a.Sacc": ("acc", "e/a"), "e/b.Sacc": ("acc", "e/b")},
        {"b": "do not say which tables"},
    ),
    "stack that was not saved": Found(
        stacks(*STACKED, values={"users_items": None}),
        slots={"e/users_items.Sacc": ("acc", "e/users_items")},
        rejected={"users_items": "not saved"},
    ),
    "stacks without layouts": Found(
        stacks(values={"t": TABLE}), {"t": "e/t"}, slots={"e/t.Sacc": ("acc", "e/t")}
    ),
    "small tables by their features": Found(
        objects(
            {
                "embedding": {
                    "_keras_embedding_layers": {
                        "genre": (small := {"embeddings": A}),
                        "kind": small,
                        "of_one_axis": {"embeddings": of("v", values=TABLE[0])},
                        "not_saved": {"embeddings": of("gone", values=None)},
                        "never_called": {"other": B},
                    }
                }
            }
        ),
        {"genre": "a"},
        "PartialTPUEmbedding",
        note="also read by 'kind'",
    ),
    # Layers of Keras.
    # Keras 3 names a functional model's variables after the layers, a subclassed one's not.
    "other names": Found(
        objects({"m": {"x": of("my_embeddings"), "y": of("a", "user/embeddings_2")}}),
        candidates="a my_embeddings",
    ),
    "layers of one name": Found(
        objects({side: {"emb": {"embeddings": of(f"{side}/emb/embeddings")}} for side in "ab"}),
        {"a.emb": "a/emb/embeddings", "b.emb": "b/emb/embeddings"},
    ),
    "layer whose names other tables have": Found(
        objects(
            {
                "e": {
                    "_variables": {
                        "user": {"parameters": A},
                        "m.user": {"parameters": B},
                        f"k/embeddings{SUFFIX}": {"parameters": C},
                    }
                },
                "m": {"user": {"embeddings": of("k/embeddings")}},
            }
        ),
        {
            "user": "a",
            "m.user": "b",
            f"k/embeddings{SUFFIX}": "c",
            f"k/embeddings{SUFFIX}'": "k/embeddings",
        },
    ),
    "older layer beside LoRA": Found(
        objects({"user": {"embeddings": of("x/embeddings"), "lora_embeddings_a": B}}),
        {"user": "x/embeddings"},
    ),
    "text": Found(objects({"user": {"embeddings": of("x/embeddings", values=b"text")}})),
    "other values of one name": Found(
        objects(
            {
                "variables": {"0": of("variables/0", "movies/embeddings")},
                "_all_variables": {"0": of("_all_variables/0", "movies/embeddings", TABLE + 1)},
            }
        ),
        {"variables": "variables/0", "_all_variables": "_all_variables/0"},
    ),
    # States of optimizers.
    "state of a number": Found(optimizer(C), slots={"c": ("1", None)}, step=7),
    "state of a name": Found(
        optimizer(of("c", "adam/odd")), slots={"c": ("adam/odd", None)}, step=7
    ),
    "state named after its variable": Found(
        optimizer(
            of("s", "Adam/m/user/embeddings"), of("t", "Adam/m/dense/kernel"), u=USER_A, **KERNELS
        ),
        {"user": "a"},
        slots={"s": ("m", "a"), "t": ("Adam/m/dense/kernel", None)},
        step=7,
    ),
    "Adafactor of another shape": named_state(
        "adafactor/user_embeddings_v", "adafactor/user_embeddings_v", None, TABLE[:4]
    ),
    "Adafactor of two variables": named_state(
        "adafactor/dense_kernel_v", "adafactor/dense_kernel_v", None
    ),
    "Adafactor of a variable that it does not train": named_state(
        "adafactor/item_embeddings_v", "adafactor/item_embeddings_v", None
    ),
    # Steps.
    "step of the program": Found(steps(step=np.array(3), global_step=np.array(4)), step=3),
    "step of a float": Found(steps(step=np.float32(3), global_step=np.array(4, "i4")), step=4),
    "largest count": Found(steps(first=np.array(5), second=np.array(6)), slots=None, step=6),
    "count of an older optimizer": Found(
        steps(first=np.array(8), older=np.array(9)), slots=None, step=9
    ),
    "count of no optimizer": Found(steps(none=np.array(9))),
}


def tree(path: str, table: str = "", origin: str = "") -> Found:
    """A leaf of Orbax, which is a table if it has a name."""
    return Found(leaves([path]), {table: path} if table else {}, origin)


def state(path: str, name: str, owner: str | None = "params.user.embedding") -> Found:
    """A state of an optimizer beside a table."""
    key = "params.user.embedding"
    return Found(leaves([key, path]), {"user": key}, slots={path: (name, owner)})


def stack(path: str, name: str, *slots: str) -> Found:
    """A stack, which is rejected by its name, or any matrix."""
    states = {slot: (f"slot {slot.rpartition('.slot.')[2]}", path) for slot in slots}
    rejected = {name: "--layout"} if name else {}
    candidates = "" if name else path
    return Found(leaves([path, *slots]), slots=states, rejected=rejected, candidates=candidates)


LEAVES: dict[str, Found] = {
    "nnx": tree("model.user.embedding.value", "user", "Flax Embed"),
    "Keras": tree("trainable_variables.user.embeddings", "user", KERAS),
    "another name": tree("params.user.my_embedding"),
    "more than a layer": tree("params.user.embedding.scale"),
    "layers of one name": Found(
        leaves(["query.ids.embedding", "candidate.ids.embedding"]),
        {"query.ids": "query.ids.embedding", "candidate.ids": "candidate.ids.embedding"},
    ),
    **{
        f"state {path}": state(path, name)
        for path, name in (
            ("opt_state.0.mu.params.user.embedding", "mu"),
            ("optimizer.opt_state.0.nu.user.embedding.value", "nu"),
            ("optimizer_variables.adam.user_embedding_momentum.value", "momentum"),
            ("opt_state.user.embedding", "user"),
            ("opt.mu.embedding", "mu"),
            ("state.opt_states.mu.other.embedding", "other"),
        )
    },
    **{
        f"state {path}": state(path, name, None)
        for path, name in (
            ("optimizer_variables.adam.other_embedding_momentum", "other_embedding_momentum"),
            ("opt_state.hidden", "hidden"),
            ("opt_state.0.count.value", "count"),
        )
    },
    "state of two weights": Found(
        leaves(["params.user.embedding", "item.embedding", "opt_state.mu.embedding"]),
        {"user": "params.user.embedding", "item": "item.embedding"},
        slots={"opt_state.mu.embedding": ("embedding", None)},
    ),
    "stack by a name": Found(
        leaves(["emb.var:users:table", "emb.var:users:table:slot:acc"]),
        slots={"emb.var:users:table:slot:acc": ("acc", "emb.var:users:table")},
        rejected={"users": "--layout"},
    ),
    "stack of any name, by its slots": stack("head.users.table", "users", "head.users.slot.0"),
    "table of any name": stack("head.items.table", ""),
    "table of another layer": stack("embeddings.users.table", ""),
    "slot without its stack": stack("head.slot.0", ""),
    "stack of one axis": Found(leaves({"sc_embedding_variables.users.table": TABLE[0]})),
    **{
        f"step {step} of {counts}": Found(
            leaves({path: np.array(count) for path, count in counts.items()}),
            slots=None,
            step=step,
        )
        for counts, step in (
            ({"params.count": 7}, None),
            ({"opt_state.0.count": 7}, 7),
            ({"a.step": 3, "opt_state.0.count": 7, "global_step": 4}, 3),
            ({"a.b.step": 3, "ab.step": 4}, 4),
            ({"step.value": 4, "steps": 3}, 4),
            ({"iteration": 4}, None),
            ({"optimizer_variables.adam.iteration": 5, "opt_state.count": 6}, 5),
        )
    },
}


def nested(depth: int) -> Any:
    inner = layer("Embedding", "user")
    for number in range(depth):
        inner = layer("Functional", f"m{number}", inner)
    return inner


def unnamed(tables: Mapping[str, str]) -> Found:
    """Embeddings without names in a model of two of them."""
    layers = [layer("Embedding", "user"), layer("Dense", "d"), layer("Embedding", "item")]
    return Found(weights(dict.fromkeys(tables.values(), ""), *layers), tables)


EMBEDDING_0 = "layers/embedding/vars/0"
LOOKUP_0 = "layers/lookup/vars/0"
OLD_STATE = "optimizer_weights/Adam/user/embeddings:0"
LAYERS: dict[str, Found] = {
    # The library lists each file in a process of its own, so a file has several layers.
    "layers without classes": Found(
        weights(
            {
                EMBEDDING_0: "user",
                "layers/embedding/vars/1": "",
                LOOKUP_0: "embedding_3",
                "a/shop/vars/0": "embedding",
                "b/shop/vars/0": "embedding",
                "model/optimizer/vars/3": "",
            }
        ),
        {
            "user": EMBEDDING_0,
            "embedding_3": LOOKUP_0,
            "a.shop": "a/shop/vars/0",
            "b.shop": "b/shop/vars/0",
        },
        KERAS,
        slots={"model/optimizer/vars/3": ("3", None)},
    ),
    "layers with classes": Found(
        weights(
            {
                LOOKUP_0: "user",
                "layers/lookup_1/vars/0": "of_another_class",
                EMBEDDING_0: "in_the_folder",
                "layers/lookup_2/vars/0": "embedding_3",
            },
            3,
            {"class_name": "Embedding"},
            layer("Embedding", "user"),
            layer("Dense", "of_another_class"),
            layer("Dense", "in_the_folder"),
        ),
        {"user": LOOKUP_0},
    ),
    "class in too many models": Found(weights({LOOKUP_0: "user"}, nested(32))),
    "Keras 2": Found(
        weights({"model_weights/user/user/embeddings:0": "", OLD_STATE: ""}),
        {"user": "model_weights/user/user/embeddings:0"},
        slots={OLD_STATE: ("Adam/user/embeddings", None)},
    ),
    "place among the embeddings": unnamed(
        {"user": EMBEDDING_0, "item": "layers/embedding_1/vars/0"}
    ),
    "place that the model does not have": unnamed(
        {"user": EMBEDDING_0, "embedding_2": "layers/embedding_2/vars/0"}
    ),
    "fewer than the embeddings": unnamed({"embedding": EMBEDDING_0}),
    "no configuration": Found(
        weights({EMBEDDING_0: ""}, config='{"config": 3}'), {"embedding": EMBEDDING_0}
    ),
    **{
        f"step of {counts}": Found(
            weights({key: np.int64(count) for key, count in counts.items()}), slots=None, step=step
        )
        for counts, step in (
            ({"optimizer/vars/0": 4, "optimizer/vars/1": 5}, 4),
            ({"optimizer/inner_optimizer/vars/0": 4, "optimizer/vars/0": 0}, 4),
            ({"optimizer_weights/Adam/iterations": 4}, 4),
            ({"layers/dense/vars/0": 4, "global_step": 5}, None),
        )
    },
}

BAG = "model.ebc.embedding_bags.users.weight"


def module(state: str, name: str, owner: str | None = BAG) -> Found:
    return Found(tensors(BAG, state), {"users": BAG}, slots={state: (name, owner)})


MODULES: dict[str, Found] = {
    "other modules": Found(tensors("users.weight", "my_embeddings.u.weight", "embeddings.weight")),
    "three axes": Found(tensors(BAG, shape=(4, 1, 2))),
    "modules of one name": Found(
        tensors("a.embeddings.users.weight", "b.embedding_bags.users.weight"),
        {
            "a.embeddings.users": "a.embeddings.users.weight",
            "b.embedding_bags.users": "b.embedding_bags.users.weight",
        },
    ),
    "state of a numbered optimizer": module(f"optimizers.0.state.{BAG}.exp_avg", "exp_avg"),
    "state of a shorter name": module(
        "fused_optimizer.state.ebc.embedding_bags.users.weight.exp_avg", "exp_avg"
    ),
    "state of another variable": module("optim.state.other.weight.exp_avg", "exp_avg", None),
    "quantized table": Found(
        tensors(BAG, f"{BAG}_qscale", f"{BAG}_qbias", "over.weight"),
        rejected={"users": "quantized", "users_qscale": "'users'", "users_qbias": "'users'"},
        candidates="over.weight",
    ),
}
