"""Towers of PyTorch, as a training program would have them. Needs torch; golden files hold what
`write_tower` made of them.
"""

# mypy: ignore-errors

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

ROWS = {"users": 21, "items": 10, "tags": 9}
DIMS = {"users": 4, "items": 8, "tags": 4}


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


class Elements(nn.Module):
    """Functions of numbers, with dtypes that PyTorch promotes."""

    def forward(self, number, count):
        ratio = count / 7 + count.float().log1p() - (count // 3) % 5
        bounded = number.clamp(-1, 1).abs().sqrt() + torch.exp(-number.pow(2)) + number.erf()
        chosen = torch.where((number > 0) & (count >= 2), bounded, 1 / (2 + ratio.abs()))
        steps = torch.cumsum(torch.arange(3) + chosen.unsqueeze(-1).expand(-1, 3), dim=1)
        activated = functional.silu(chosen) + functional.leaky_relu(number) + number.tanh()
        return torch.cat([steps, torch.stack([chosen, ratio, activated], dim=1)], dim=1)


class Shapes(nn.Module):
    """Slices, splits, padding and reductions."""

    def forward(self, user, item):
        first, second = item.split([3, 5], dim=1)
        padded = functional.pad(first, (1, 2), value=0.5)
        largest = item.amax(dim=1, keepdim=True) - item.amin(dim=1, keepdim=True)
        repeated = user.repeat(1, 2)[:, 1:-1:2]
        flat = torch.softmax(second, dim=1).mean(dim=1, keepdim=True)
        return torch.cat([padded, largest, repeated, flat, item[:, -2:], user[:, 1:2]], dim=1)


class Convolution(nn.Module):
    """An operation that has no counterpart."""

    def __init__(self):
        super().__init__()
        self.convolved = nn.Conv1d(1, 2, 3)

    def forward(self, user):
        return self.convolved(user.unsqueeze(1)).flatten(1)


def cases():
    """Yields the name of each tower, the tower, and examples of its inputs."""
    generator = torch.Generator().manual_seed(7)

    def numbers(*shape):
        return torch.randn((5, *shape), generator=generator)

    user = numbers(DIMS["users"])
    item = numbers(DIMS["items"])
    tag = numbers(DIMS["tags"])
    age = numbers()
    movies = torch.randint(0, 50, (5, 6), generator=generator)
    movies[1, :4] = 0
    count = torch.randint(0, 9, (5,), generator=generator)
    torch.manual_seed(11)
    yield "ranker", Ranker(), {"user": user, "item": item, "tag": tag, "age": age}
    yield "cross", Cross(), {"user": user, "item": item}
    yield "attention", Attention(), {"user": user, "movies": movies}
    yield "elements", Elements(), {"number": numbers(), "count": count}
    yield "shapes", Shapes(), {"user": user, "item": item}
    yield "convolution", Convolution(), {"user": user}
