"""Networks of the coverage benchmark whose heads, inputs or types are out of the ordinary: sorting, tables, halves."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scripts.benchmarks.coverage.modules import Function, _conv, families


def _dlrm() -> Any:
    """A recommendation model: embedding bags and a dense part, crossed with each other."""

    def forward(self: Any, dense: Tensor, ids: Tensor) -> Tensor:
        parts = [self.bottom(dense), *(bag(ids[:, i]) for i, bag in enumerate(self.bags))]
        stacked = torch.stack(parts, 1)
        products = stacked @ stacked.transpose(1, 2)
        rows, columns = torch.tril_indices(len(parts), len(parts), -1)
        return self.top(torch.cat([parts[0], products[:, rows, columns]], 1)).sigmoid()

    bags = nn.ModuleList(nn.EmbeddingBag(100, 32, mode="sum") for _ in range(3))
    modules = {"bottom": nn.Sequential(nn.Linear(13, 32), nn.ReLU()), "bags": bags, "top": nn.Linear(32 + 6, 1)}
    return Function(forward, **modules), (torch.randn(4, 13), torch.randint(0, 100, (4, 3, 5)))


def _text_bag() -> Any:
    """A classifier of texts of several lengths: bags by offsets."""

    def forward(self: Any, tokens: Tensor, offsets: Tensor) -> Tensor:
        return self.head(self.bag(tokens, offsets))

    modules = {"bag": nn.EmbeddingBag(200, 64, mode="mean"), "head": nn.Linear(64, 4)}
    return Function(forward, **modules), (torch.randint(0, 200, (20,)), torch.tensor([0, 7, 12]))


def _graph_convolution() -> Any:
    """Two graph convolutions over a dense bool adjacency."""

    def forward(self: Any, nodes: Tensor, adjacency: Tensor) -> Tensor:
        weights = (adjacency | torch.eye(24, dtype=torch.bool)).float()
        scale = weights.sum(-1, keepdim=True).rsqrt()
        weights = scale * weights * scale.transpose(0, 1)
        x = F.relu(weights @ self.first(nodes))
        return (weights @ self.second(x)).log_softmax(-1)

    modules = {"first": nn.Linear(32, 64), "second": nn.Linear(64, 7)}
    return Function(forward, **modules), (torch.randn(24, 32), torch.rand(24, 24) < 0.2)


def _message_passing() -> Any:
    """A graph by its edges: gather of the senders, scatter-add to the receivers."""

    def forward(self: Any, nodes: Tensor, edges: Tensor) -> Tensor:
        messages = self.message(nodes[edges[0]])
        received = torch.zeros_like(messages[:24]).index_add(0, edges[1], messages)
        counts = torch.zeros(24).scatter_add(0, edges[1], torch.ones(80))
        return self.update(torch.cat([nodes, received / counts.clamp(min=1)[:, None]], 1))

    modules = {"message": nn.Linear(32, 32), "update": nn.Linear(64, 16)}
    return Function(forward, **modules), (torch.randn(24, 32), torch.randint(0, 24, (2, 80)))


def _classifier_with_candidates() -> Any:
    """The five likeliest classes, their probabilities, and the arg max."""

    def forward(self: Any, image: Tensor) -> Any:
        logits = self.head(self.stem(image).mean((2, 3)))
        return logits.softmax(-1).topk(5), logits.argmax(-1), logits.amax(-1)

    return Function(forward, stem=_conv(3, 32, stride=4), head=nn.Linear(32, 100)), (torch.randn(1, 3, 64, 64),)


def _sampling_head() -> Any:
    """Nucleus filtering: sort, cumulative sum, mask by where, gathered back."""

    def forward(self: Any, hidden: Tensor) -> Tensor:
        logits = self.head(hidden)
        ordered, order = logits.sort(-1, descending=True)
        kept = ordered.softmax(-1).cumsum(-1) < 0.9
        limited = torch.where(kept, ordered, torch.full_like(ordered, -1e4))
        return torch.zeros_like(logits).scatter(-1, order, limited)

    return Function(forward, head=nn.Linear(64, 200)), (torch.randn(2, 64),)


def _ranking() -> Any:
    """Two towers: gather of the candidates' rows, and their order."""

    def forward(self: Any, user: Tensor, items: Tensor) -> Any:
        query = F.normalize(self.user(user), dim=-1)
        rows = F.normalize(F.embedding(items, self.items.weight), dim=-1)
        scores = (rows * query[:, None]).sum(-1)
        order = scores.argsort(-1, descending=True)
        return {"order": order, "scores": scores.gather(-1, order)}

    modules = {"user": nn.Linear(32, 48), "items": nn.Embedding(100, 48)}
    return Function(forward, **modules), (torch.randn(2, 32), torch.randint(0, 100, (2, 12)))


def _detector() -> Any:
    """Boxes of a grid, decoded; the best by their score, without suppression."""

    def forward(self: Any, image: Tensor) -> dict[str, Tensor]:
        raw = self.head(self.stem(image)).flatten(2).transpose(1, 2)
        grid = torch.stack(torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij"), -1).view(1, 64, 2)
        centre, size = raw[..., :2].sigmoid() + grid, raw[..., 2:4].exp()
        boxes = torch.cat([centre - size / 2, centre + size / 2], -1).clamp(0, 8)
        scores, labels = raw[..., 4:].sigmoid().max(-1)
        best, where = scores.topk(10)
        kept = boxes.gather(1, where.unsqueeze(-1).expand(-1, -1, 4))
        return {"boxes": kept, "scores": best, "labels": labels.gather(1, where)}

    return Function(forward, stem=nn.Sequential(_conv(3, 16, stride=4), _conv(16, 32, stride=2)),
                    head=nn.Conv2d(32, 9, 1)), (torch.randn(1, 3, 64, 64),)  # fmt: skip


def _text_and_numbers() -> Any:
    """Tokens, numbers by keyword, and a scalar tensor; shared weights."""

    def forward(self: Any, tokens: Tensor, *, numbers: Tensor, temperature: Tensor) -> dict[str, Tensor]:
        hidden = self.mix(torch.cat([self.embed(tokens).mean(1), numbers], -1)).relu()
        return {"logits": F.linear(hidden, self.embed.weight) / temperature, "hidden": hidden}

    modules = {"embed": nn.Embedding(300, 64), "mix": nn.Linear(64 + 8, 64)}
    named = {"numbers": torch.randn(2, 8), "temperature": torch.tensor(0.7)}
    return Function(forward, **modules), (torch.randint(0, 300, (2, 16)),), named


def _nested_inputs() -> Any:
    """A dictionary and a list of tensors as inputs, a tuple of a tensor and a list as output."""

    def forward(self: Any, batch: dict[str, Tensor], states: list[Tensor]) -> Any:
        x = self.first(batch["x"]).masked_fill(batch["mask"], 0.0)
        new = [torch.tanh(x + state) for state in states]
        return self.second(new[-1]), new

    batch = {"x": torch.randn(2, 32), "mask": torch.rand(2, 64) < 0.3}
    modules = {"first": nn.Linear(32, 64), "second": nn.Linear(64, 5)}
    return Function(forward, **modules), (batch, [torch.randn(2, 64), torch.randn(2, 64)])


def _perceptron(dtype: torch.dtype = torch.float32) -> Any:
    layers = [nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 10)]
    return nn.Sequential(*layers).to(dtype), (torch.randn(4, 64).to(dtype),)


HEADS = families({
    "tables and graphs": {
        "dlrm": _dlrm,
        "text-bag": _text_bag,
        "graph-convolution": _graph_convolution,
        "message-passing": _message_passing,
    },
    "heads": {
        "top-k": _classifier_with_candidates,
        "sampling-head": _sampling_head,
        "ranking": _ranking,
        "detector": _detector,
    },
    "inputs and types": {
        "text-and-numbers": _text_and_numbers,
        "nested-inputs": _nested_inputs,
        "perceptron": _perceptron,
        "float16": lambda: _perceptron(torch.float16),
        "bfloat16": lambda: _perceptron(torch.bfloat16),
    },
})  # fmt: skip
