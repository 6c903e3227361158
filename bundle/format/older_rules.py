"""Manifests of format version 1, whose features named kinds of rules: the same rules as graphs.

A manifest is translated as JSON, before it is checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bundle.errors import FormatError
from bundle.format.graph_builder import GraphBuilder
from bundle.format.id_graphs import GraphIds, InputDtype, LookupTable

Json = dict[str, Any]

VERSION = 1
_ROUNDED = {"down": "Floor", "up": "Ceil", "half_even": "Rint"}
_COMPUTED = {
    "add": "AddV2",
    "multiply": "Mul",
    "divide": "FloorDiv",
    "remainder": "FloorMod",
    "truncated_remainder": "TruncateMod",
    "at_least": "Maximum",
    "at_most": "Minimum",
}


def translate(content: Json) -> Json:
    """Returns a manifest of version 1 as one of version 2.

    Raises:
      FormatError: a rule is none of version 1; names the feature.
    """
    try:
        dtypes = {name: entry["dtype"] for name, entry in content.get("vocabularies", {}).items()}
        features = {
            name: _feature(feature, dtypes) for name, feature in content["features"].items()
        }
    except (AttributeError, LookupError, TypeError, ValueError) as problem:
        raise FormatError(f"manifest: features are none of version 1: {problem!r}") from problem
    return content | {"format_version": VERSION + 1, "features": features}


def _feature(feature: Json, dtypes: Mapping[str, str]) -> Json:
    rule = feature.get("ids")
    if feature.get("kind") == "dense" or rule is None:
        return feature
    cast = feature.get("cast")
    after = {key: value for key, value in feature.items() if key != "cast"}
    return after | {"ids": _rule(rule, dtypes, cast)}


def _rule(rule: Json, dtypes: Mapping[str, str], cast: Json | None = None) -> Json:
    kind = rule["kind"]
    if kind == "crossed":
        return rule | {"keys": [_key(key, dtypes) for key in rule["keys"]]}
    if kind == "joined":
        return _joined(rule, dtypes)
    if kind == "text":
        return _text(rule, dtypes)
    if kind == "keyed" or (kind == "identity" and cast is None):
        return rule
    if kind == "graph":
        return _with_tables(rule)
    return _graph(rule["rules"] if kind == "chained" else [rule], dtypes, cast=cast)


def _text(rule: Json, dtypes: Mapping[str, str]) -> Json:
    """Returns a rule of the words of a text, or the graph of a text that is one word."""
    if rule.get("split") is None:
        return _graph([rule["ids"]], dtypes, rule.get("steps", ()))
    after = {name: value for name, value in rule.items() if name != "steps"}
    after["ids"] = _graph([rule["ids"]], dtypes)
    if rule.get("steps"):
        builder = GraphBuilder("string")
        _after_steps(builder, builder.last, rule["steps"])
        after["text"] = builder.graph().model_dump(mode="json")
    return after


def _with_tables(rule: Json) -> Json:
    """Returns a graph that names its lookup tables so."""
    tables = [
        {"vocabulary": entry["vocabulary"], "first_value": entry.get("first_row", 0)}
        for entry in rule.get("vocabularies", ())
    ]
    nodes = [
        node | {"attributes": {"table": node["attributes"]["vocabulary"]}}
        if node["op"] == "LookupTableFindV2"
        else node
        for node in rule["nodes"]
    ]
    return {"kind": "graph", "nodes": nodes, "tables": tables}


_COMPUTED_OF_KEY = ("ids", "rows", "unknown_row", "steps")


def _key(key: Json, dtypes: Mapping[str, str]) -> Json:
    """Returns a key of a cross."""
    after = {name: value for name, value in key.items() if name not in _COMPUTED_OF_KEY}
    if not any(key.get(name) for name in _COMPUTED_OF_KEY):
        return after
    builder = GraphBuilder(key["dtype"])
    _add_key(builder, builder.last, key, dtypes)
    return after | {"ids": builder.graph().model_dump(mode="json")}


def _joined(rule: Json, dtypes: Mapping[str, str]) -> Json:
    """Returns a rule of the string that several inputs are joined to."""
    left_out = (*_COMPUTED_OF_KEY, "padding")
    keys = [
        {name: value for name, value in key.items() if name not in left_out} for key in rule["keys"]
    ]
    builder = GraphBuilder(rule["keys"][0]["dtype"])
    texts = rule["texts"]
    parts = [builder.constant(texts[0], "string")]
    for number, (key, text) in enumerate(zip(rule["keys"], texts[1:], strict=True)):
        values = builder.input(key["dtype"], number) if number else 0
        value = _add_key(builder, values, key, dtypes)
        is_text = key["dtype"] == "string" and key.get("ids") is None
        parts.append(value if is_text else builder.texts(value))
        parts.append(builder.constant(text, "string"))
    joined = builder.compute("StringJoin", *parts, separator="")
    _added(builder, joined, rule["ids"], dtypes)
    return {"kind": "joined", "keys": keys, "ids": builder.graph().model_dump(mode="json")}


def _add_key(builder: GraphBuilder, values: int, key: Json, dtypes: Mapping[str, str]) -> int:
    """Adds what is computed of a key's values; returns the position of the result."""
    rule = key.get("ids")
    result = _after_steps(builder, values, key.get("steps", ()))
    links = [] if rule is None else rule.get("rules", [rule])
    for number, link in enumerate(links):
        is_text = number == 0 and key["dtype"] == "string"
        result = _added(builder, result, link, dtypes, is_text)
    if key.get("rows") is not None:
        row = key.get("unknown_row")
        result = builder.replaced(result, key["rows"], -1 if row is None else row)
    return result


def _graph(
    links: Sequence[Json],
    dtypes: Mapping[str, str],
    steps: Sequence[Json] | None = None,
    cast: Json | None = None,
) -> Json:
    """Returns rules that follow one another as one graph; with `steps`, of texts."""
    if cast is not None:
        dtype: InputDtype = "float32" if cast["of"] == "float32" else "int64"
    else:
        dtype = _input_of(links, dtypes) if steps is None else "string"
    builder = GraphBuilder(dtype)
    result = _after_steps(builder, builder.last, steps or ())
    if cast is not None:
        if cast.get("rounding", "toward_zero") in _ROUNDED:
            result = builder.compute(_ROUNDED[cast["rounding"]], result)
        result = builder.compute("Cast", result, DstT=cast["to"])
        result = builder.compute("Cast", result, DstT="int64")
    for link in links:
        result = _added(builder, result, link, dtypes, cast is None and link is links[0])
    return builder.graph().model_dump(mode="json")


def _input_of(links: Sequence[Json], dtypes: Mapping[str, str]) -> InputDtype:
    """Returns what callers send to the first of some rules."""
    first = links[0]
    by_kind: dict[str, InputDtype] = {"hash": "int64_or_string", "buckets": "float32"}
    if first["kind"] == "vocabulary":
        return "string" if dtypes[first["vocabulary"]] == "string" else "int64"
    return by_kind.get(first["kind"], "int64")


def _after_steps(builder: GraphBuilder, text: int, steps: Sequence[Json]) -> int:
    """Adds changes of a text; returns the position of the changed one."""
    for step in steps:
        what = step.get("what", "")
        if what:
            escaped = "".join(
                f"\\{one}" if one.isascii() and not (one.isalnum() or one == "_") else one
                for one in what
            )
            pattern = f"[{escaped}]" if step["do"] == "replace_any" else escaped
            replacing = {"pattern": pattern, "rewrite": step.get("by", ""), "replace_global": True}
            text = builder.compute("StaticRegexReplace", text, **replacing)
        else:
            text = builder.compute(f"String{step['do'].capitalize()}", text)
    return text


def _added(
    builder: GraphBuilder, values: int, link: Json, dtypes: Mapping[str, str], is_text: bool = True
) -> int:
    """Adds a rule of values, which may be texts; returns the position of its rows."""
    kind = link["kind"]
    if kind == "computed":
        for operation in link["operations"]:
            values = _computed(builder, values, operation["do"], operation.get("by"))
        return values
    if kind == "buckets":
        return _buckets(builder, values, link)
    if kind == "hash":
        texts = values if is_text else builder.texts(values)
        rows = builder.hashed(texts, link["buckets"], link.get("key"))
        mask = link.get("mask")
        rows = builder.moved(rows, link.get("first_row", 0))
        return builder.masked(rows, texts, "string", None if mask is None else str(mask))
    if kind == "vocabulary":
        dtype = dtypes[link["vocabulary"]]
        table = LookupTable(vocabulary=link["vocabulary"], first_value=link.get("first_row", 0))
        beyond = {
            key: link[key]
            for key in ("oov_buckets", "oov_first_row", "oov_hash", "mask")
            if key in link
        }
        return builder.vocabulary(
            values, "string" if dtype == "string" else "int64", table, **beyond
        )
    if kind == "identity":
        return values
    if kind == "graph":
        return builder.then(GraphIds.model_validate(_with_tables(link)))
    raise ValueError(f"{kind!r} is no rule")


def _buckets(builder: GraphBuilder, numbers: int, link: Json) -> int:
    """Adds the buckets of numbers; returns the position of the rows."""
    counts = builder.buckets(numbers, link["boundaries"])
    first = link.get("first_row", 0)
    if not link.get("falling"):
        return builder.moved(counts, first)
    return builder.compute("Sub", builder.constant(first + len(link["boundaries"])), counts)


def _computed(builder: GraphBuilder, integers: int, do: str, by: int | None) -> int:
    """Adds one operation on integers of 64 bits."""
    if do == "absolute":
        return builder.compute("Abs", integers)
    if do == "int32":
        narrow = builder.compute("Cast", integers, DstT="int32")
        return builder.compute("Cast", narrow, DstT="int64")
    return builder.compute(_COMPUTED[do], integers, builder.constant(by or 0))
