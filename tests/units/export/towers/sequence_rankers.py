"""Rankers of a candidate behind a history, as authors write them: transformers with other masks,
orders and heads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from export.graphs.loading import tf

Inputs = Mapping[str, Any]

WIDTH = 16
HISTORY = 12
HEADS = 2
SIZE = WIDTH // HEADS


@dataclass(frozen=True)
class Style:
    """How a ranker is written.

    Attributes:
      mask: How positions are kept from seeing later ones: "added", "chosen", "padded" (with the
        history's own padding), "numbers" (the same, in products of 0 and 1), "per head" (the same
        for each head of each example, and each position sees itself), "multiplied" (without a
        softmax), "causal heads" (one key for all heads) or "none".
      order: What stands before what: "history", "user" (before the history) or "candidate".
      result: What of the positions is the result: "last", "mean", "weights" or "flat".
      layers: The number of layers.
      events: The number of events of a history.
      is_rotated: Whether keys and queries are rotated by their positions.
      is_positions_first: Whether attention has positions before examples, as PyTorch's has.
      has_places_beside: Whether constants that stand for positions are beside the vectors of events
        instead of in their sum.
    """

    mask: str = "added"
    order: str = "history"
    result: str = "last"
    layers: int = 2
    events: int = HISTORY
    is_rotated: bool = False
    is_positions_first: bool = False
    has_places_beside: bool = False

    @property
    def positions(self) -> int:
        """The number of positions of its sequence."""
        return self.events + 1 + (self.order == "user")


def ranker(style: Style, seed: int = 0) -> Callable[[Inputs], dict[str, Any]]:
    """Returns a function of a history, [b, events, WIDTH], a user and an item, [b, WIDTH]."""
    random = np.random.default_rng(seed)

    def weights(*shape: int) -> Any:
        return tf.Variable(random.normal(0, shape[0] ** -0.5, shape).astype(np.float32))

    layers = [
        {name: weights(WIDTH, WIDTH) for name in "qkvo"}
        | {"wide": weights(WIDTH, 2 * WIDTH), "narrow": weights(2 * WIDTH, WIDTH)}
        for _ in range(style.layers)
    ]
    events = weights(WIDTH, WIDTH)
    places = weights(style.positions, WIDTH)
    constants = random.normal(0, 1, (1, style.positions, WIDTH)).astype(np.float32)
    beside = weights(2 * WIDTH, WIDTH)
    last = weights(WIDTH * (style.positions if style.result == "flat" else 1), 1)

    def call(inputs: Inputs) -> dict[str, Any]:
        # Weights of the history alone, which the candidates' part does not read.
        pieces = [inputs["history"] @ events, inputs["item"][:, tf.newaxis]]
        if style.order == "user":
            pieces.insert(0, inputs["user"][:, tf.newaxis])
        if style.order == "candidate":
            pieces.reverse()
        x = tf.concat(pieces, 1)
        if style.has_places_beside:
            x = tf.concat([x, tf.tile(constants, [tf.shape(x)[0], 1, 1])], 2) @ beside
        else:
            x += places
        for layer in layers:
            x += _attention(style, layer, _normalized(x), inputs["history"])
            x += tf.nn.gelu(_normalized(x) @ layer["wide"]) @ layer["narrow"]
        return {"score": (_result(style, _normalized(x)) @ last)[:, 0]}

    return call


def _normalized(x: Any) -> Any:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-6)


def _attention(style: Style, layer: Mapping[str, Any], x: Any, history: Any) -> Any:
    count = style.positions

    def heads(name: str) -> Any:
        return tf.reshape(x @ layer[name], [-1, count, HEADS, SIZE])

    queries, keys, values = heads("q"), heads("k"), heads("v")
    if style.is_rotated:
        queries, keys = _rotated(queries), _rotated(keys)
    if style.mask == "causal heads":
        scores = tf.einsum("bthd,bsd->bhts", queries, keys[:, :, 0]) * SIZE**-0.5
    else:
        scores = tf.einsum("bthd,bshd->bhts", queries, keys) * SIZE**-0.5
    shares = _shares(style, scores, history)
    if style.is_positions_first:
        mixed = tf.einsum("bhts,bshd->tbhd", shares, values)
        mixed = tf.reshape(mixed, [count, -1, SIZE])
        rows = tf.reshape(mixed, [-1, WIDTH]) @ layer["o"]
        return tf.transpose(tf.reshape(rows, [count, -1, WIDTH]), [1, 0, 2])
    mixed = tf.einsum("bhts,bshd->bthd", shares, values)
    return tf.reshape(mixed, [-1, count, WIDTH]) @ layer["o"]


def _shares(style: Style, scores: Any, history: Any) -> Any:
    count = style.positions
    earlier = np.tril(np.ones((count, count), bool))
    if style.order == "candidate":
        earlier = earlier.T
    if style.mask == "none":
        return tf.nn.softmax(scores)
    if style.mask == "multiplied":
        return tf.nn.silu(scores) * tf.constant(earlier, tf.float32) / count
    if style.mask in ("added", "causal heads"):
        return tf.nn.softmax(scores + tf.constant(np.where(earlier, 0, -1e9), tf.float32))
    seen = tf.constant(earlier)[tf.newaxis]
    if style.mask in ("padded", "numbers", "per head"):
        is_event = tf.reduce_any(history != 0, 2)
        others = tf.ones([tf.shape(history)[0], count - style.events], bool)
        pieces = [others, is_event] if style.order == "candidate" else [is_event, others]
        if style.order == "user":
            pieces = [others[:, :1], is_event, others[:, 1:]]
        counted = tf.concat(pieces, 1)[:, tf.newaxis, :]
        if style.mask == "numbers":
            seen = tf.cast(seen, tf.float32) * tf.cast(counted, tf.float32) != 0
        else:
            seen = seen & counted
    if style.mask == "per head":
        seen = tf.tile((seen | np.eye(count, dtype=bool))[:, tf.newaxis], [1, HEADS, 1, 1])
        rows = [-1, count, count]
        masked = tf.where(tf.reshape(seen, rows), tf.reshape(scores, rows), -np.inf)
        return tf.reshape(tf.nn.softmax(masked), [-1, HEADS, count, count])
    return tf.nn.softmax(tf.where(seen[:, tf.newaxis], scores, np.finfo(np.float32).min))


def _rotated(x: Any) -> Any:
    angles = np.arange(x.shape[1])[:, None, None] / 100 ** (np.arange(SIZE // 2) * 2 / SIZE)
    first, second = tf.split(x, 2, axis=-1)
    cosine, sine = (tf.constant(f(angles), tf.float32) for f in (np.cos, np.sin))
    return tf.concat([first * cosine - second * sine, second * cosine + first * sine], -1)


def _result(style: Style, x: Any) -> Any:
    if style.result == "flat":
        return tf.reshape(x, [-1, style.positions * WIDTH])
    if style.result == "mean":
        return tf.reduce_mean(x, 1)
    place = 0 if style.order == "candidate" else style.positions - 1
    if style.result == "weights":
        chosen = tf.one_hot(place, style.positions)
        return tf.einsum("bnd,n->bd", x, chosen)
    return x[:, place]


MASKS = ("added", "chosen", "padded", "numbers", "per head", "multiplied", "causal heads")
ORDERS = ("history", "user", "candidate")
RESULTS = ("last", "mean", "weights", "flat")
STYLES = [
    Style(
        mask,
        order,
        result,
        is_rotated=number % 3 == 1,
        is_positions_first=number % 2 == 0,
        has_places_beside=number % 3 == 2,
    )
    for number, (mask, order, result) in enumerate(itertools.product(MASKS, ORDERS, RESULTS))
]
"""Rankers whose histories do not see the candidate."""
