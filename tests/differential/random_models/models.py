"""Random models: a file and a recipe as a user writes them, and what requests hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from random import Random

from tests.differential.random_models import bags, columns, gathers, id_rules
from tests.differential.random_models.dialects import FLAX, JAX, KERAS, TENSORFLOW
from tests.differential.random_models.drafts import DIMS, Activation, Draft, Input
from tests.differential.random_models.files import FILES, RECIPE
from tests.units.export.movies_job import toml

FEATURES = ("user", "movie", "genre")
DIALECTS = (TENSORFLOW, TENSORFLOW, TENSORFLOW, TENSORFLOW, KERAS, KERAS, FLAX, JAX)
CHECKPOINTS = {
    "tensorflow": ('path = "checkpoint/model", object_path = "model"',),
    "keras": (
        # HDF5 is read in a process of its own, which takes a while to start.
        *['path = "checkpoint/model", object_path = "model"'] * 3,
        'path = "model.weights.h5"',
    ),
    "flax": ('path = "checkpoint"',),
    "jax": ('path = "checkpoint"',),
}


@dataclass(frozen=True)
class RandomModel:
    """A model, with what its export and its requests need.

    Attributes:
      seed: The seed that it was drawn from.
      library: "tensorflow", "keras", "flax" or "jax".
      code: The text of the model's file.
      recipe: The text of the recipe.
      inputs: The inputs by name.
      heads: The outputs of a ranking tower; (): the tower returns one vector for each example.
      contexts: The inputs that are features of contexts.
      is_exact: Whether responses must have the bits of the model's results.
      vocabularies: The vocabularies that the recipe states, by name.
      files: The texts of files that the model reads, by name.
      extracted: The rows and columns of each table that must leave the towers.
      forms: The names of the functions that drew it.
      known: The known difference of the export from a correct one; "": there is none.
    """

    seed: int
    library: str
    code: str
    recipe: str
    inputs: Mapping[str, Input]
    heads: tuple[str, ...]
    contexts: tuple[str, ...]
    is_exact: bool
    vocabularies: Mapping[str, Sequence[int]]
    files: Mapping[str, str]
    extracted: Set[tuple[int, int]]
    forms: Set[str]
    known: str

    def __str__(self) -> str:
        """Returns the files that a user would write."""
        return f"# model.py\n{self.code}\n# recipe.toml\n{self.recipe}"


def draw_model(seed: int) -> RandomModel:
    """Draws a model; the same for the same seed."""
    random = Random(seed)
    draft = Draft(random, random.choice(DIALECTS))
    vector, is_exact = _add_activations(draft)
    heads: tuple[str, ...] = ()
    if draft.chance(0.5):
        heads = draft.choice(("click",), ("click", "like"))
    has_hidden = draft.chance(0.5)
    if has_hidden:
        vector = _add_dense(draft, "hidden", vector, draft.choice(*DIMS))
    for head in heads:
        _add_dense(draft, head, vector, 1)
    results = ", ".join(f'"{head}": {head}[:, 0]' for head in heads)
    draft.call.append(f"return {{{results}}}" if heads else f"return {vector.code}")

    _add_default(draft)
    contexts: tuple[str, ...] = ()
    if heads:
        contexts = tuple(name for name in list(draft.inputs)[1:] if draft.chance(0.3))
    return RandomModel(
        seed=seed,
        library=draft.dialect.name,
        code=_code(draft),
        recipe=_recipe(draft, heads, contexts),
        inputs=draft.inputs,
        heads=heads,
        contexts=contexts,
        is_exact=is_exact and not heads and not has_hidden,
        vocabularies=draft.vocabularies,
        files=draft.files,
        extracted=draft.extracted if draft.all_tables_are_read else frozenset(),
        forms=draft.forms,
        known=draft.known,
    )


def all_forms() -> set[str]:
    """Returns the names of all functions that draw lookups and computations of ids."""
    draws = [draw for gathered in gathers.GATHERS.values() for draw in gathered]
    draws += [*bags.BAGS, *columns.COLUMNS]
    return {draw.__name__ for draw in draws} | id_rules.all_rules()


def _add_activations(draft: Draft) -> tuple[Activation, bool]:
    """Adds some features; returns the vector of them all, and whether it is exact."""
    vectors: dict[str, Activation] = {}
    for name in FEATURES[: draft.choice(1, 1, 2, 2, 3)]:
        vectors[name] = _draw_activation(draft, name)
        draft.call.append(f"{name} = {vectors[name].code}")
    names = [*vectors]
    width = sum(vector.width for vector in vectors.values())
    if draft.chance(0.5):
        draft.inputs["age"] = Input("float32", (0.0, 0.5, -1.25, 3.0, 0.1), "fixed", 1)
        names.append('inputs["age"]')
        width += 1
    # A lookup may be the result itself.
    is_alone = len(names) == 1 and draft.chance(0.5)
    draft.call.append(f"x = {names[0] if is_alone else draft.dialect.joined(*names)}")
    is_exact = all(vector.is_exact for vector in vectors.values())
    return Activation("x", width), is_exact


def _draw_activation(draft: Draft, name: str) -> Activation:
    lookups = gathers.GATHERS[draft.dialect.name]
    if draft.dialect is TENSORFLOW and draft.chance(0.7):
        lookups = (*bags.BAGS, *columns.COLUMNS)
    draw = draft.choice(*lookups)
    draft.forms.add(draw.__name__)
    return draw(draft, name)


def _add_dense(draft: Draft, name: str, vector: Activation, units: int) -> Activation:
    """Adds a dense layer over a vector; returns its result."""
    activation = draft.choice(*draft.dialect.activations)
    product = f"self.{name}({vector.code})"
    if draft.dialect.dense:
        draft.constructor.append(f"self.{name} = {draft.dialect.dense.format(units=units)}")
    else:
        draft.parameters[f"{name}_kernel"] = f"shape(({vector.width}, {units}), jnp.float32)"
        draft.parameters[f"{name}_bias"] = f"shape(({units},), jnp.float32)"
        product = f'({vector.code} @ parameters["{name}_kernel"] + parameters["{name}_bias"])'
    draft.call.append(f"{name} = {activation.format(product)}")
    return Activation(name, units)


def _add_default(draft: Draft) -> None:
    """Lets requests leave a feature out."""
    # That of a list of one value is not a list.
    names = [
        name
        for name, part in draft.inputs.items()
        if not (part.weights or part.rows or (part.encoding == "fixed" and part.length == 1))
    ]
    if names[1:] and draft.chance(0.2):
        name = names[-1]
        part = draft.inputs[name]
        default = draft.choice(*part.pool)
        if part.encoding != "single":
            default = [default] * (part.length if part.encoding == "fixed" else 1)
        draft.inputs[name] = replace(part, default=default)


def _code(draft: Draft) -> str:
    """Returns the file of a model."""
    between = "\n        "
    example = {
        name: f"jnp.zeros({[2] if part.encoding == 'single' else [2, part.length]}, {part.dtype!r})"
        for name, part in draft.inputs.items()
    }
    return FILES[draft.dialect.name].format(
        constructor=between.join(draft.constructor),
        call=between.join(draft.call),
        example=_dict(example),
        parameters=_dict(draft.parameters)[1:-1],
    )


def _dict(entries: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": {code}' for name, code in entries.items()) + "}"


def _recipe(draft: Draft, heads: Sequence[str], contexts: Sequence[str]) -> str:
    """Returns the recipe of a model."""
    tower = ['role = "query"', "split = false"]
    if heads:
        outputs = ", ".join(f'{head} = "{head}"' for head in heads)
        split = draft.choice("true", "false", "false", "false")
        tower = ['role = "ranking"', f"outputs = {{ {outputs} }}", f'result = "{heads[0]}"']
        tower.append(f"split = {split}")
    if draft.dialect.module == "jnp":
        tower.append('call = "score"')
    if draft.chance(0.7):
        # A SavedModel alone: to compile a tower for LiteRT costs as much as the rest.
        tower.append("precisions = []")
    entries = []
    for name, part in draft.inputs.items():
        entries += _entries(name, part, is_candidate=bool(heads) and name not in contexts)
    if draft.states_examples:
        entries.append('verify.examples = "examples.jsonl"')
        entries.append("warm_up.examples = 3")
    for name in draft.vocabularies:
        entries.append(f'vocabularies.{name} = {{ file = "{name}.txt", dtype = "int64" }}')
    options = ""
    if draft.all_tables_are_read:
        options += ", table_threshold = 0"
    if draft.dialect.name == "keras":
        options += ', trained_with = "tensorflow"'
    return RECIPE.format(
        checkpoint=draft.choice(*CHECKPOINTS[draft.dialect.name]),
        options=options,
        tower=", ".join(tower),
        entries="\n".join(entries),
    )


def _entries(name: str, part: Input, *, is_candidate: bool) -> list[str]:
    """Returns what a recipe says of an input, and of its feature."""
    kind = ""
    if part.encoding in ("ragged", "sparse"):
        kind = f', kind = "{part.encoding}"'
    shape = f", shape = [{part.length}]" if part.encoding == "fixed" else ""
    entries = [f'inputs.{name} = {{ dtype = "{part.dtype}"{kind}{shape} }}']
    if part.weights:
        weights = f'dtype = "float32"{kind}, weights_for = "{name}"'
        entries.append(f"inputs.{name}_weights = {{ {weights} }}")
    feature = ['role = "candidate"'] if is_candidate else []
    if part.feature:
        feature.append(part.feature)
    if part.default is not None:
        feature.append(f"default = {toml(part.default)}")
    if feature:
        entries.append(f"features.{name} = {{ {', '.join(feature)} }}")
    return entries
