"""Towers of PyTorch, as a training program would have them. Needs torch; golden files hold what
`write_tower` made of them.
"""

# mypy: ignore-errors

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

ROWS = {"users": 21, "items": 10, "tags": 9}
DIMS = {"users": 4, "items": 8, "tags": 4}


class OfDict(nn.Module):
    """A function of one dict, as `write_tower` takes it."""

    def __init__(self, tower):
        super().__init__()
        self.tower = tower

    def forward(self, inputs):
        return self.tower(**inputs)


class Ranker(nn.Module):
    """The top of a DLRM over three activations and a number, with two outputs."""

    def __init__(self):
        super().__init__()
        self.taste = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 4))
        self.narrow = nn.Linear(DIMS["items"], 4)
        self.age = nn.Sequential(nn.Linear(1, 4), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(4 + 6, 16), nn.ReLU(), nn.LayerNorm(16))
        self.click = nn.Linear(16, 1)
        self.like = nn.Linear(16, 1)

    def forward(self, user, item, tag, age):
        user = self.taste(user)
        rows = torch.stack([user, self.narrow(item), tag, self.age(age.unsqueeze(-1))], dim=1)
        pairs = torch.bmm(rows, rows.transpose(1, 2))
        first, second = torch.triu_indices(4, 4, offset=1)
        crossed = pairs[:, first, second]
        deep = self.top(torch.cat([user, crossed], dim=1))
        return {
            "click": torch.sigmoid(self.click(deep)).squeeze(-1),
            "like": torch.sigmoid(self.like(deep)).squeeze(-1),
        }


class Cross(nn.Module):
    """DCN v2 with batch normalization."""

    def __init__(self):
        super().__init__()
        self.crosses = nn.ModuleList(nn.Linear(12, 12) for _ in range(2))
        self.normalize = nn.BatchNorm1d(12)
        self.normalize.running_mean.normal_()
        self.normalize.running_var.uniform_(0.5, 2)

    def forward(self, user, item):
        first = self.normalize(torch.cat([user, item], dim=1))
        crossed = first
        for layer in self.crosses:
            crossed = first * layer(crossed) + crossed
        return functional.gelu(crossed).sum(dim=1)


class Attention(nn.Module):
    """Masked attention over the last movies of a user, whose table stays inside the tower."""

    def __init__(self):
        super().__init__()
        self.movies = nn.Embedding(50, 8)
        self.places = nn.Parameter(torch.randn(6, 8))
        self.query = nn.Linear(8, 8)
        self.both = nn.Linear(8, 16)

    def forward(self, user, movies):
        heads = 2
        rows = self.movies(movies) + self.places
        queries = self.query(rows)
        keys, values = self.both(rows).chunk(2, dim=-1)

        def divided(each):
            return each.view(each.shape[0], 6, heads, 4).transpose(1, 2)

        mask = torch.tril(torch.ones(6, 6, dtype=torch.bool)) & (movies != 0)[:, None, None, :]
        found = functional.scaled_dot_product_attention(
            divided(queries), divided(keys), divided(values), attn_mask=mask | torch.eye(6).bool()
        )
        last = found.transpose(1, 2).reshape(movies.shape[0], 6, 8)[:, -1]
        return torch.cat([functional.normalize(last, dim=-1), user], dim=1)


class Encoder(nn.Module):
    """The encoder of a transformer over the last movies, whose padding is masked."""

    def __init__(self):
        super().__init__()
        self.movies = nn.Embedding(50, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, movies, last):
        rows = self.layers(self.movies(movies), src_key_padding_mask=movies == 0)
        return rows.gather(1, last[:, None, None].expand(-1, 1, 8)).squeeze(1)


class Attended(nn.Module):
    """Multi-head attention of a candidate over a history, and the weights of the heads."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, item, history):
        found, weights = self.attention(item.unsqueeze(1), history, history)
        causal = functional.scaled_dot_product_attention(history, history, history, is_causal=True)
        liked = item[:, None, :6] > 0  # no key at all for one of the examples
        masked = functional.scaled_dot_product_attention(history, history, history, liked)
        taste = torch.cat([found.squeeze(1), masked[:, 0]], dim=1)
        return {"taste": taste, "weights": weights.amax(dim=1), "last": causal[:, -1]}


class Experts(nn.Module):
    """MMoE over crosses of low rank, as TorchRec writes them, and a factorization machine."""

    def __init__(self):
        super().__init__()
        self.down = nn.Parameter(torch.randn(3, 12))
        self.up = nn.Parameter(torch.randn(12, 3))
        self.bias = nn.Parameter(torch.randn(12, 1))
        self.experts = nn.ModuleList(nn.Linear(12, 4) for _ in range(3))
        self.gate = nn.Linear(12, 3)

    def forward(self, user, item):
        first = torch.cat([user, item], dim=1).unsqueeze(2)
        product = torch.matmul(self.up, torch.matmul(self.down, first)) + self.bias
        crossed = (first * product + first).squeeze(2)
        shares = torch.softmax(self.gate(crossed), dim=-1)
        found = torch.stack([functional.silu(expert(crossed)) for expert in self.experts], dim=1)
        mixed = torch.einsum("be,bed->bd", shares, found)
        fields = torch.stack([user, item[:, :4], item[:, 4:]], dim=1)
        pairs = 0.5 * (fields.sum(dim=1).pow(2) - fields.square().sum(dim=1))
        return (mixed + pairs).sum(dim=1)


class Interest(nn.Module):
    """The attention of DIN: the history's rows, weighted by what they have to do with the item."""

    def __init__(self):
        super().__init__()
        self.relevance = nn.Sequential(nn.Linear(32, 8), nn.PReLU(), nn.Linear(8, 1))

    def forward(self, item, history, count):
        repeated = item.unsqueeze(1).expand_as(history)
        products = [repeated, history, repeated - history, repeated * history]
        relevance = self.relevance(torch.cat(products, dim=-1)).squeeze(-1)
        read = torch.arange(history.shape[1]) < count.unsqueeze(1)
        relevance = relevance.masked_fill(~read, -1e9)
        weighted = (torch.softmax(relevance, dim=1).unsqueeze(-1) * history).sum(dim=1)
        mean = (history * read.unsqueeze(-1)).sum(dim=1) / read.sum(dim=1, keepdim=True).clamp(
            min=1
        )
        return {"likeness": functional.cosine_similarity(weighted, item), "mean": mean}


class Elements(nn.Module):
    """Functions of numbers, with dtypes that PyTorch promotes."""

    def forward(self, number, count):
        ratio = count / 7 + count.float().log1p() - 2 * count
        bounded = number.clamp(-1, 1).abs().sqrt() + torch.exp(-number.pow(2)) + number.erf()
        even = (count != 1) | (count <= 4) & ~(count == 3)
        chosen = torch.where((number > 0) & (count >= 2) & even, bounded, 1 / (2 + ratio.abs()))
        steps = torch.arange(3) + chosen.unsqueeze(-1).expand(-1, 3)
        relu = functional.relu6(2 * number) + functional.leaky_relu(number)
        soft = functional.softplus(number) + functional.mish(number) + functional.logsigmoid(number)
        tanh = number.tanh() + functional.gelu(number, approximate="tanh")
        logs = (1 + number.abs()).log() + (2 + number.square()).rsqrt() + number.abs().pow(1.5)
        limits = torch.maximum(number, count) - torch.minimum(number, torch.tensor(0.25))
        counted = (number < 0.5).sum() * 0 + count.eq(2)
        rows = [chosen, ratio, relu, soft, tanh, logs, limits, counted]
        return torch.cat([steps, torch.stack(rows, dim=1)], dim=1)


class Shapes(nn.Module):
    """Slices, splits, gathers and reductions."""

    def forward(self, user, item):
        first, second = item.split([3, 5], dim=1)
        largest = item.amax(dim=1, keepdim=True) + user.mean(dim=1, keepdim=True)
        pairs = item.view(-1, 2, 4)
        last = pairs[:, [-1, 0], [0, -1]]
        flat = torch.softmax(second, dim=1) @ torch.ones(5, 2)
        row = pairs.permute(0, 2, 1).reshape(-1, 8)[:, 1:-1:2]
        norms = torch.linalg.vector_norm(pairs, dim=2)
        return torch.cat(
            [largest, last, flat, row, norms, first, item[:, -2:], user[:, 1:2]], dim=1
        )


class Outputs(nn.Module):
    """Inputs and outputs in another order than that of the alphabet."""

    def forward(self, item, user):
        return {"second": item[:, 0] - user[:, 0], "first": user}


class Begun(nn.Module):
    """Sums that begin with a tensor of the batch's size, as linear parts and FMs often do."""

    def forward(self, user, item):
        count = user.shape[0]
        logit = user.new_zeros((count, 1)) + torch.ones(count, 1)
        logit += torch.full((count, 1), 0.25) * user.new_full((1,), 2)
        logit += torch.empty(count, 1).fill_(0.5) + item.new_empty(count, 1).zero_()
        halves = torch.zeros(count // 2 + 1, 1).sum() + torch.ones(2 * count - 1, 1).amax()
        exposed = torch.full((count, 4), True) & (user > 0)
        places = torch.ones(count, 2, dtype=torch.int64).cumsum(1) + torch.arange(count)[:, None]
        own = user[torch.arange(count), places[:, 0] * 0 + 2]
        return torch.cat([logit + halves + user, exposed, places, own[:, None]], dim=1)


class Recurrent(nn.Module):
    """The last states of recurrent layers over a history of any length."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(8, 8, num_layers=2, batch_first=True, bidirectional=True)
        self.lstm = nn.LSTM(8, 4, batch_first=True)
        self.cell = nn.GRUCell(8, 4)

    def forward(self, history, last):
        states, _ = self.gru(history)
        place = last.view(-1, 1, 1).expand(-1, 1, 16)
        newest = states.gather(1, place).squeeze()
        _, (hidden, memory) = self.lstm(history)
        stepped = self.cell(history[:, 0], memory[-1])
        return torch.cat([newest, hidden[-1], stepped], dim=1)


class Convolved(nn.Module):
    """Convolutions over a history, and the largest and the mean number of windows."""

    def __init__(self):
        super().__init__()
        self.near = nn.Conv1d(8, 6, 3, padding=1)
        self.each = nn.Conv1d(8, 8, 2, stride=2, groups=4, bias=False)
        self.both = nn.Conv2d(1, 4, (2, 8), dilation=(2, 1))
        self.normalize = nn.BatchNorm1d(6)
        self.normalize.running_mean.normal_()
        self.normalize.running_var.uniform_(0.5, 2)

    def forward(self, history):
        channels = history.transpose(1, 2)
        near = functional.max_pool1d(functional.relu(self.normalize(self.near(channels))), 6)
        each = functional.avg_pool1d(self.each(channels), 3)
        both = functional.max_pool1d(self.both(history[:, None]).squeeze(-1), 2)
        return torch.cat([part.flatten(1) for part in (near, each, both)], dim=1)


class Assigned(nn.Module):
    """Values that are written to positions: by a mask, a slice, an index and ids."""

    def forward(self, history, movies, item):
        known = history.clone()
        known[movies == 0] = -1.0
        known[:, 1] = 0.5
        known[:, 2:5:2] = history[:, :2]
        known[:, -1, :] = item
        seen = torch.zeros(movies.shape[0], 50).scatter_(1, movies, 1.0)
        first = torch.zeros(movies.shape[0], 50).scatter(1, movies[:, :1], history[:, :, 0])
        counted = torch.zeros(movies.shape[0], 50).scatter_add_(1, movies, history[..., 0])
        return torch.cat([known.flatten(1), seen, first, counted], dim=1)


class Ordered(nn.Module):
    """The largest values and where they are, sums up to a position, and copies."""

    def forward(self, item, history, movies):
        largest, place = history.max(dim=1)
        best = history.topk(2, dim=1).values.flatten(1)
        least = item.topk(3, largest=False).indices
        ranked = item.sort(descending=True).values + item.argsort(dim=1)
        chosen = item.argmax(dim=-1, keepdim=True) - item.argmin(dim=1)[:, None]
        smallest = history.min(dim=2, keepdim=True).values.squeeze(2)
        later = history[..., 0].flip(1).cumsum(1).flip([1]) + movies.cumsum(dim=1)
        decay = history[..., 1].sigmoid().cumprod(1)
        padded = functional.pad(history[..., 0], (2, -1), value=0.5)
        repeated = item.repeat(1, 2) + item[:, None].repeat(1, 2, 1).flatten(1)
        flags = (history > 0).any(dim=1) | (history > -1).all(dim=2).all(dim=1, keepdim=True)
        whole = history.max() * 0 + item.index_select(1, torch.tensor([3, 0]))
        parts = [largest, place, best, least, ranked, chosen, smallest, later, decay, padded]
        return torch.cat([*parts, repeated, flags, whole], dim=1)


class Numbers(nn.Module):
    """Arithmetic that is less common, and statistics of rows."""

    def forward(self, item, movies):
        count = movies[:, :2]
        parts = [
            torch.add(item, item, alpha=2) - torch.sub(item, 1.0, alpha=3),
            count // 2 + count % 3,
            torch.div(item, 0.3, rounding_mode="trunc") + item.remainder(0.7) + item.fmod(0.4),
            torch.div(count, 4, rounding_mode="trunc") + torch.div(count, 3, rounding_mode="floor"),
            item.round() + item.trunc() + (1 + item.abs()).log2() + (1 + item.abs()).log10(),
            functional.elu(item) + functional.selu(item) + functional.celu(item),
            item.std(dim=1, keepdim=True) + item.var(dim=1, unbiased=False, keepdim=True),
            item.prod(dim=1, keepdim=True) + count.prod(dim=1, keepdim=True),
            functional.normalize(item, p=1) + item.norm(p=3, dim=1, keepdim=True),
            item.norm(p=math.inf, dim=1, keepdim=True) + item.mean((0, 1)) * 0,
            functional.log_softmax(item, dim=1) + torch.softmax(item.double(), dim=1).float(),
            torch.bucketize(item, torch.tensor([-1.0, 0.0, 0.5])),
            (count & 3) | (count ^ 1),
            (item > 0) ^ (item < 1),
            torch.nan_to_num((item - item.abs()).log()).clamp(-5, 5) * torch.isfinite(item),
            item @ torch.arange(8.0).unsqueeze(1) + (item @ torch.ones(8)).unsqueeze(1),
            (item.double() * 2 + item).float() + torch.tensor(1.0, dtype=torch.float64),
        ]
        return torch.cat([part.float() for part in parts], dim=1)


class Routed(nn.Module):
    """Numbers that are drawn in each call, which no two services would draw alike."""

    def forward(self, user):
        return user + torch.randn(user.shape[0], 4)


def cases():
    """Yields the name of each tower, the tower, and examples of its inputs."""
    generator = torch.Generator().manual_seed(7)

    def numbers(*shape):
        return torch.randn((5, *shape), generator=generator)

    user = numbers(DIMS["users"])
    item = numbers(DIMS["items"])
    item[2] = -item[2].abs()
    tag = numbers(DIMS["tags"])
    age = numbers()
    movies = torch.randint(0, 50, (5, 6), generator=generator)
    movies[1, 3:] = 0
    last = (movies != 0).sum(dim=1) - 1
    history = numbers(6, 8)
    count = torch.randint(0, 9, (5,), generator=generator)
    torch.manual_seed(11)
    yield "ranker", Ranker(), {"user": user, "item": item, "tag": tag, "age": age}
    yield "cross", Cross(), {"user": user, "item": item}
    yield "attention", Attention(), {"user": user, "movies": movies}
    yield "encoder", Encoder(), {"movies": movies, "last": last}
    yield "attended", Attended(), {"item": item, "history": history}
    yield "experts", Experts(), {"user": user, "item": item}
    yield "interest", Interest(), {"item": item, "history": history, "count": count}
    yield "outputs", Outputs(), {"user": user, "item": item}
    yield "elements", Elements(), {"number": numbers(), "count": count}
    yield "shapes", Shapes(), {"user": user, "item": item}
    yield "begun", Begun(), {"user": user, "item": item}
    yield "recurrent", Recurrent(), {"history": history, "last": last}
    yield "convolved", Convolved(), {"history": history}
    yield "assigned", Assigned(), {"history": history, "movies": movies, "item": item}
    yield "ordered", Ordered(), {"item": item, "history": history, "movies": movies}
    yield "numbers", Numbers(), {"item": item, "movies": movies}
    yield "routed", Routed(), {"user": user}
