"""`train`: a model, data and a recipe in; the best epoch's weights and the whole curve out.

The same seed, data and recipe give the same weights, and a run that was stopped and resumed gives the same
weights, bit for bit, as one that was not (on one machine with one number of threads): all randomness of an
epoch is drawn from (seed, epoch), so there is no generator state to lose.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..models.base import CostModel
from .config import TrainConfig
from .dataset import Batch, RankingDataset, epoch_batches
from .distributed import ALONE, World
from .errors import TrainingError
from .evaluation import evaluate_model
from .losses import get_loss
from .state import TrainState, copied_weights, load_state, save_state, write_curve


@dataclass(frozen=True)
class TrainResult:
    """The outcome of a run.

    Attributes:
        history: one entry an epoch: epoch, learning_rate, loss, seconds and, where evaluated, val_* metrics.
        best_epoch: the epoch whose weights the model now has.
        best: its validation metrics, empty without a validation set.
        resumed_from: epochs that an earlier run had done.
    """

    history: list[dict[str, float]]
    best_epoch: int
    best: dict[str, float]
    resumed_from: int = 0


def train(
    model: CostModel,
    data: RankingDataset,
    val: RankingDataset | None,
    config: TrainConfig,
    seed: int = 0,
    resume_dir: Path | None = None,
    on_epoch: Callable[[dict[str, float]], None] | None = None,
    world: World = ALONE,
) -> TrainResult:
    """Train `model` in place and leave it with the weights of the best epoch.

    Args:
        model: its present weights are the start; training happens on its device.
        val: what chooses the epoch; without it, with `select = "last"`, or where its metric is NaN, the last one
            is kept.
        config: the recipe; its `arch`, `model` and `feature_schema` have been used by then.
        seed: of the order of the batches (and of dropout, where a model has it).
        resume_dir: where the state is saved every `save_every` epochs; a state found there is continued, and
            `curve.csv` is written beside it.
        on_epoch: gets each entry of the history.
        world: the processes that train this model together; they split every batch, and the first one writes.

    Raises:
        TrainingError: the loss is no longer finite, or the state is of another recipe, seed or data set, or damaged.
    """
    run = _TrainingRun(model, data, val, config, seed, resume_dir, world)
    with torch.random.fork_rng(devices=[]):
        for epoch in range(run.state.epoch, config.epochs):
            entry = run.epoch(epoch)
            if on_epoch:
                on_epoch(entry)
    return run.finish()


@dataclass
class _TrainingRun:
    """The moving parts of one training run."""

    model: CostModel
    data: RankingDataset
    val: RankingDataset | None
    config: TrainConfig
    seed: int
    folder: Path | None
    world: World

    def __post_init__(self) -> None:
        model, data, val, config = self.model, self.data, self.val, self.config
        self.device = next(model.parameters()).device
        self.loss = get_loss(config.loss)
        # The head that learns each program, of a model of several; the last serves all further corpora.
        heads = getattr(model.config, "heads", 1)
        self.heads = torch.from_numpy(np.minimum(data.heads, heads - 1)) if heads > 1 else None
        kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
        self.optimizer = kind(model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
        # What must be equal for a saved state to be continued.
        self.identity: dict[str, Any] = {
            "config": config.as_dict(),
            "seed": self.seed,
            "data": data.fingerprint(),
            "val": val.fingerprint() if val is not None else None,
            "model": model.config.as_dict(),
        }
        average = copied_weights(model) if config.average > 0 else None
        self.state = TrainState(best=copied_weights(model), average=average)
        if self.folder is not None:
            self.state = load_state(self.folder, model, self.optimizer, self.state, self.identity)
        self.resumed_from = self.state.epoch

    def epoch(self, epoch: int) -> dict[str, float]:
        started = time.perf_counter()
        torch.manual_seed(int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0]))
        rate = self.config.learning_rate_at(epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        entry: dict[str, float] = {"epoch": epoch, "learning_rate": rate, "loss": self._pass(epoch)}
        last = epoch + 1 == self.config.epochs
        with self._averaged_weights():
            if self.val is not None:
                entry |= {f"val_{k}": v for k, v in evaluate_model(self.model, self.val, self.world).items()}
            self._keep_best(entry)
        entry["seconds"] = time.perf_counter() - started
        self.state.epoch = epoch + 1
        self.state.history.append(entry)
        if self.folder is not None and self.world.rank == 0 and (last or (epoch + 1) % self.config.save_every == 0):
            save_state(self.folder, self.model, self.optimizer, self.state, self.identity)
            write_curve(self.folder, self.state.history)
        return entry

    def _pass(self, epoch: int) -> float:
        self.model.train()
        groups, programs = self.config.groups_per_batch, self.config.programs_per_group
        batches = epoch_batches(self.data, groups, programs, np.random.default_rng([self.seed, epoch]))
        total = count = 0.0
        for number, batch in enumerate(batches):
            loss = self._step(batch, np.random.default_rng([self.seed, epoch, number]))
            total, count = total + loss * len(batch), count + len(batch)
        if not np.isfinite(total):
            raise TrainingError(
                f"the loss is no longer finite in epoch {epoch}",
                remedy="lower learning_rate, or set clip_norm (1.0 is usual)",
            )
        return total / max(count, 1)

    def _step(self, batch: Batch, rng: np.random.Generator) -> float:
        """Take one step of all processes on one batch; return its loss."""
        labels = torch.from_numpy(batch.labels).to(self.device)
        mask = torch.from_numpy(batch.mask).to(self.device)
        index = batch.index[self.world.part(len(batch.index))]
        x, heads = torch.from_numpy(self.data.features[index]).to(self.device), self.heads
        rows = self.model.describe(x) if heads is None else self.model.describe_heads(x, heads[index].to(self.device))
        own = rows.float()  # (n, columns), by the head of each program's task if it has one
        every = self.world.gather(own, len(batch.index))
        loss = self.model.training_loss(every, labels, mask, self.loss, rng)
        if self.data.bounds is not None:
            loss = loss + self.model.bound_loss(every, torch.from_numpy(self.data.bounds[batch.index]).to(self.device))
        self.optimizer.zero_grad(set_to_none=True)
        self.world.backward(loss, own)
        self.world.sum_gradients(self.model.parameters())
        if self.config.clip_norm > 0:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.optimizer.step()
        if self.state.average is not None:
            # Early on a long memory would keep the random start: it grows with the steps taken.
            self.state.steps += 1
            keep = min(self.config.average, (1 + self.state.steps) / (10 + self.state.steps))
            with torch.no_grad():
                for name, value in self.model.state_dict().items():
                    mean = self.state.average[name]
                    # A counter, as of normalised batches, has no mean.
                    _ = mean.lerp_(value, 1 - keep) if mean.is_floating_point() else mean.copy_(value)
        return float(loss.detach())

    @contextlib.contextmanager
    def _averaged_weights(self):
        """Give the model the running mean of its weights, if there is one, while inside."""
        if self.state.average is None:
            yield
            return
        own = copied_weights(self.model)
        self.model.load_state_dict(self.state.average)
        yield
        self.model.load_state_dict(own)

    def _keep_best(self, entry: dict[str, float]) -> None:
        chosen = self.val is not None and self.config.select != "last"
        score = entry[f"val_{self.config.select}"] if chosen else entry["epoch"]
        if np.isnan(score):  # no two programs of the set can be compared: it chooses no epoch
            score = entry["epoch"]
        if self.state.best_epoch < 0 or score > self.state.best_score:
            self.state.best_score, self.state.best_epoch = score, int(entry["epoch"])
            self.state.best = copied_weights(self.model)

    def finish(self) -> TrainResult:
        self.model.load_state_dict(self.state.best)
        self.model.eval()
        entry = next((e for e in self.state.history if e["epoch"] == self.state.best_epoch), {})
        best = {k.removeprefix("val_"): v for k, v in entry.items() if k.startswith("val_")}
        return TrainResult(self.state.history, self.state.best_epoch, best, self.resumed_from)
