"""Manifests of format version 1, whose features named kinds of rules: the same rules as graphs.

A manifest is translated as JSON, before it is checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from bundle.errors import FormatError
from bundle.format.graph_builder import GraphBuilder
from bundle.format.id_graphs import GraphIds, InputDtype, LookupTable

Json = dict[str, Any]

VERSION = 1
_OPERATION_BY_ROUNDING = {"down": "Floor", "up": "Ceil", "half_even": "Rint"}
_OPERATION_BY_NAME = {
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
      FormatError: A rule is none of version 1; names the feature.
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
    fields = {key: value for key, value in feature.items() if key != "cast"}
    return fields | {"ids": _rule(rule, dtypes, cast)}


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
    links = [rule]
    if kind == "chained":
        links = rule["rules"]
    return _graph(links, dtypes, cast=cast)


def _text(rule: Json, dtypes: Mapping[str, str]) -> Json:
    """Returns a rule of the words of a text, or the graph of a text that is one word."""
    if rule.get("split") is None:
        return _graph([rule["ids"]], dtypes, rule.get("steps", ()))
    fields = {name: value for name, value in rule.items() if name != "steps"}
    fields["ids"] = _graph([rule["ids"]], dtypes)
    if rule.get("steps"):
        builder = GraphBuilder("string")
        _add_steps(builder, builder.last, rule["steps"])
        fields["text"] = builder.graph().model_dump(mode="json")
    return fields


def _with_tables(rule: Json) -> Json:
    """Returns a graph with its lookup tables as version 2 names them."""
    tables = [
        {"vocabulary": entry["vocabulary"], "first_value": entry.get("first_row", 0)}
        for entry in rule.get("vocabularies", ())
    ]
    nodes = []
    for node in rule["nodes"]:
        if node["op"] == "LookupTableFindV2":
            node = node | {"attributes": {"table": node["attributes"]["vocabulary"]}}  # noqa: PLW2901 - the same node
        nodes.append(node)
    return {"kind": "graph", "nodes": nodes, "tables": tables}


_COMPUTED_OF_KEY = ("ids", "rows", "unknown_row", "steps")
"""Fields of a key whose effect is a part of its graph now."""


def _key(key: Json, dtypes: Mapping[str, str]) -> Json:
    """Returns a key of a cross."""
    fields = {name: value for name, value in key.items() if name not in _COMPUTED_OF_KEY}
    if not any(key.get(name) for name in _COMPUTED_OF_KEY):
        return fields
    builder = GraphBuilder(key["dtype"])
    _add_key(builder, builder.last, key, dtypes)
    return fields | {"ids": builder.graph().model_dump(mode="json")}


def _joined(rule: Json, dtypes: Mapping[str, str]) -> Json:
    """Returns a rule of the string that several inputs are joined to."""
    dropped = (*_COMPUTED_OF_KEY, "padding")
    keys = [
        {name: value for name, value in key.items() if name not in dropped} for key in rule["keys"]
    ]
    builder = GraphBuilder(rule["keys"][0]["dtype"])
    # The constant texts stand before, between and behind the values.
    texts = rule["texts"]
    operands = [builder.constant(texts[0], "string")]
    for number, (key, text) in enumerate(zip(rule["keys"], texts[1:], strict=True)):
        # The builder has begun with the first input.
        values = 0
        if number:
            values = builder.input(key["dtype"], number)
        value = _add_key(builder, values, key, dtypes)
        is_text = key["dtype"] == "string" and key.get("ids") is None
        if not is_text:
            value = builder.texts(value)
        operands.append(value)
        operands.append(builder.constant(text, "string"))
    joined = builder.compute("StringJoin", *operands, separator="")
    _add_rule(builder, joined, rule["ids"], dtypes)
    return {"kind": "joined", "keys": keys, "ids": builder.graph().model_dump(mode="json")}


def _add_key(builder: GraphBuilder, values: int, key: Json, dtypes: Mapping[str, str]) -> int:
    """Adds what is computed of a key's values; returns the position of the result."""
    rule = key.get("ids")
    result = _add_steps(builder, values, key.get("steps", ()))
    links = []
    if rule is not None:
        links = rule.get("rules", [rule])
    for number, link in enumerate(links):
        # Only the first rule meets what callers send; the result of a rule is a row.
        is_text = number == 0 and key["dtype"] == "string"
        result = _add_rule(builder, result, link, dtypes, is_text)
    if key.get("rows") is not None:
        row = key.get("unknown_row")
        if row is None:
            row = -1
        result = builder.replaced(result, key["rows"], row)
    return result


def _graph(
    links: Sequence[Json],
    dtypes: Mapping[str, str],
    steps: Sequence[Json] | None = None,
    cast: Json | None = None,
) -> Json:
    """Returns rules that follow one another as one graph; with `steps`, of texts."""
    dtype: InputDtype
    if cast is not None and cast["of"] == "float32":
        dtype = "float32"
    elif cast is not None:
        dtype = "int64"
    elif steps is not None:
        dtype = "string"
    else:
        dtype = _input_dtype(links, dtypes)
    builder = GraphBuilder(dtype)
    result = _add_steps(builder, builder.last, steps or ())
    if cast is not None:
        # Cast to the type of the model first, which may wrap around, then to that of rows.
        if cast.get("rounding", "toward_zero") in _OPERATION_BY_ROUNDING:
            result = builder.compute(_OPERATION_BY_ROUNDING[cast["rounding"]], result)
        result = builder.compute("Cast", result, DstT=cast["to"])
        result = builder.compute("Cast", result, DstT="int64")
    for link in links:
        # Only the first rule meets what callers send, which a cast has made a number.
        is_text = cast is None and link is links[0]
        result = _add_rule(builder, result, link, dtypes, is_text)
    return builder.graph().model_dump(mode="json")


def _input_dtype(links: Sequence[Json], dtypes: Mapping[str, str]) -> InputDtype:
    """Returns what callers send to the first of some rules."""
    first = links[0]
    by_kind: dict[str, InputDtype] = {"hash": "int64_or_string", "buckets": "float32"}
    if first["kind"] == "vocabulary" and dtypes[first["vocabulary"]] == "string":
        return "string"
    return by_kind.get(first["kind"], "int64")


def _add_steps(builder: GraphBuilder, text: int, steps: Sequence[Json]) -> int:
    """Adds changes of a text; returns the position of the changed one."""
    for step in steps:
        searched = step.get("what", "")
        if searched:
            # RE2 reads an escaped punctuation character as itself, in a class as well as outside.
            pattern = re.sub(r"(?!\w)[\x00-\x7f]", r"\\\g<0>", searched, flags=re.ASCII)
            if step["do"] == "replace_any":
                pattern = f"[{pattern}]"
            attributes = {"pattern": pattern, "rewrite": step.get("by", ""), "replace_global": True}
            text = builder.compute("StaticRegexReplace", text, **attributes)
        else:
            text = builder.compute(f"String{step['do'].capitalize()}", text)
    return text


def _add_rule(
    builder: GraphBuilder, values: int, link: Json, dtypes: Mapping[str, str], is_text: bool = True
) -> int:
    """Adds a rule of values, which may be texts; returns the position of its rows."""
    kind = link["kind"]
    if kind == "computed":
        for operation in link["operations"]:
            values = _add_operation(builder, values, operation["do"], operation.get("by"))
        return values
    if kind == "buckets":
        return _add_buckets(builder, values, link)
    if kind == "hash":
        texts = values
        if not is_text:
            texts = builder.texts(values)
        rows = builder.hashed(texts, link["buckets"], link.get("key"))
        rows = builder.moved(rows, link.get("first_row", 0))
        mask = link.get("mask")
        if mask is not None:
            mask = str(mask)
        return builder.masked(rows, texts, "string", mask)
    if kind == "vocabulary":
        return _add_vocabulary(builder, values, link, dtypes)
    if kind == "identity":
        return values
    if kind == "graph":
        return builder.then(GraphIds.model_validate(_with_tables(link)))
    raise ValueError(f"{kind!r} is no rule")


def _add_vocabulary(
    builder: GraphBuilder, values: int, link: Json, dtypes: Mapping[str, str]
) -> int:
    """Adds the rows of keys of a vocabulary; returns their position."""
    table = LookupTable(vocabulary=link["vocabulary"], first_value=link.get("first_row", 0))
    dtype: Literal["int64", "string"] = "int64"
    if dtypes[link["vocabulary"]] == "string":
        dtype = "string"
    # The defaults of version 1 are those of the method.
    options = {}
    for key in ("oov_buckets", "oov_first_row", "oov_hash", "mask"):
        if key in link:
            options[key] = link[key]
    return builder.vocabulary(values, dtype, table, **options)


def _add_buckets(builder: GraphBuilder, numbers: int, link: Json) -> int:
    """Adds the buckets of numbers; returns the position of the rows."""
    counts = builder.buckets(numbers, link["boundaries"])
    first = link.get("first_row", 0)
    # Falling boundaries were stored ascending: the rows count down.
    if not link.get("falling"):
        return builder.moved(counts, first)
    return builder.compute("Sub", builder.constant(first + len(link["boundaries"])), counts)


def _add_operation(builder: GraphBuilder, integers: int, name: str, operand: int | None) -> int:
    """Adds one operation on integers of 64 bits; returns the position of the result."""
    if name == "absolute":
        return builder.compute("Abs", integers)
    if name == "int32":
        narrow = builder.compute("Cast", integers, DstT="int32")
        return builder.compute("Cast", narrow, DstT="int64")
    return builder.compute(_OPERATION_BY_NAME[name], integers, builder.constant(operand or 0))
