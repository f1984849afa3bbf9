"""Fasor's search (Huang et al. 2024, section 6.2): a deep Q-network walks the decision space, one decision a step.

A state is a program, an action moves one of its decisions to the next value, and the reward (equation 3) is what the
cost model thinks of the program there, or the latency where it was measured. The paper trains its network beforehand
on many tasks; this one begins with nothing and learns on the task that it searches.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from random import Random
from typing import Any

import numpy as np
import torch

from ...zoo.features import get_schema
from ...zoo.features.nest_columns import intensity
from ...zoo.machine import one_thread
from .candidate_features import skeleton
from .decision_search import SIMILAR, DecisionSearch, Key, ProgramPool
from .design_space import Decisions, DesignSpace
from .interrupt import StopFlag
from .settings import DecisionSettings, DQNSettings

# Logarithms of decisions are divided by this, so that they are about as large as scores.
_SCALE = 4.0


@dataclass(frozen=True)
class Transition:
    """A move that was made: the state with the action, (width,), the reward, and all actions after it, (n, width)."""

    action: np.ndarray
    reward: float
    following: np.ndarray


class QAgent:
    """An action-value network with a target network and a replay memory (Fasor, algorithm 1).

    Args:
        width: numbers of a state with an action.
        settings: of the search.
        seed: of the weights, the random moves and the draws from memory.
    """

    def __init__(self, width: int, settings: DQNSettings, seed: int) -> None:
        self._settings, self._rng = settings, Random(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._network, self._target = (_layers(width, settings.hidden) for _ in range(2))
        self._target.load_state_dict(self._network.state_dict())
        self._optimizer = torch.optim.Adam(self._network.parameters(), settings.rate)
        self._memory: deque[Transition] = deque(maxlen=settings.memory)
        self._moves = self._updates = 0

    def choose(self, actions: np.ndarray) -> int:
        """Return which of the actions (n, width) to take: that of the highest value, or by chance any."""
        options = self._settings
        fallen = options.first_random * options.decay**self._moves
        self._moves += 1
        if self._rng.random() < max(options.last_random, fallen):
            return self._rng.randrange(len(actions))
        return int(_values(self._network, actions).argmax())

    def remember(self, transition: Transition) -> None:
        """Keep a move; the oldest one goes where the memory is full."""
        self._memory.append(transition)

    def learn(self) -> None:
        """Bring the values of remembered actions nearer to reward plus discounted value of the best one after."""
        options = self._settings
        for _ in range(options.updates if self._memory else 0):
            batch = self._rng.sample(self._memory, min(options.batch, len(self._memory)))
            values = _values(self._target, np.concatenate([one.following for one in batch]))
            ends = np.cumsum([len(one.following) for one in batch])
            later = [part.max(initial=-inf) if len(part) else 0.0 for part in np.split(values, ends[:-1])]
            wanted = np.array([one.reward for one in batch]) + options.discount * np.array(later)
            own = self._network(torch.from_numpy(np.stack([one.action for one in batch]))).squeeze(1)
            self._optimizer.zero_grad()
            torch.nn.functional.mse_loss(own, torch.from_numpy(wanted.astype(np.float32))).backward()
            self._optimizer.step()
            self._updates += 1
            if self._updates % options.sync == 0:
                self._target.load_state_dict(self._network.state_dict())


class DQNSearch(DecisionSearch):
    """The search over decisions with programs that a deep Q-network walks to, instead of bred ones.

    An episode moves some walkers from where the scores are the highest: before anything was measured from the schedules
    of similar tasks, then from the fastest programs. No program is looked at twice in a round. Arguments as those of
    `DecisionSearch`; `settings.dqn` is of the network.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._dqn = self.settings.dqn or DQNSettings()
        self._kind = "gpu" if self.target is not None and "gpu" in self.target.keys else "cpu"
        # Of a program: its decisions and which design space it is of.
        self._width = max(space.numbers for space in self.spaces) + len(self.spaces)
        self._gains = np.zeros(2)  # sum and number of the moves' differences in score
        self._agent = QAgent(2 * self._width + 3, self._dqn, self.seed)

    def unmeasured(self) -> list[Any]:
        """Return the program that the model likes best of one episode, as a list of one candidate, or of none.

        It is the paper's high-efficiency mode. Of a list it is the first one.
        """
        if self._listed:
            return super().unmeasured()
        return self._liked(self._walked(1, self._dqn.efficiency, StopFlag()))

    def _bred(self, stop: StopFlag) -> ProgramPool:
        """Return the programs of episodes until they bring nothing better, the paper's high-quality mode."""
        pool = self._walked(self._dqn.episodes, self._dqn.quality, stop)
        return pool if pool.keys else super()._bred(stop)  # of a small space, which may hold others

    def _walked(self, episodes: int, weights: tuple[float, float, float], stop: StopFlag) -> ProgramPool:
        """Return the programs of a number of episodes, and those that they begin with."""
        options, seen = self._dqn, set[Key]()
        pool = self._scored([*self.carried[:SIMILAR], *self._drawn(options.drawn)], seen)
        scores = dict(zip(pool.keys, map(float, pool.scores), strict=True)) | self._measured()
        blind = not any(map(isfinite, self.latencies.values()))
        starts = [key for key in self.carried[:SIMILAR] if key in scores] if blind else []
        best, idle = max(scores.values(), default=0.0), 0
        for _ in range(episodes):
            stop.check("interrupted while searching")
            ranked = sorted([key for key in scores if key not in starts], key=scores.__getitem__, reverse=True)
            starts = [*sorted(starts, key=scores.__getitem__, reverse=True), *ranked][: options.walkers]
            with one_thread():
                pool += self._episode(starts, scores, seen, weights)
            idle = idle + 1 if max(scores.values(), default=0.0) <= best else 0
            best, starts = max(scores.values(), default=0.0), []
            if idle >= options.patience:
                break
        return pool

    def _measured(self) -> dict[Key, float]:
        """Return the measured programs on the scale of scores: the fastest has the highest of their scores."""
        fastest = [key for _, key in sorted((x, key) for key, x in self.latencies.items() if isfinite(x))]
        return dict(zip(fastest, sorted(map(float, self._pool(fastest).scores), reverse=True), strict=True))

    def _episode(
        self, starts: Sequence[Key], scores: dict[Key, float], seen: set[Key], weights: tuple[float, float, float]
    ) -> ProgramPool:
        """Walk from some programs; those that are met join `scores`, which the measured ones have as well, and `seen`.

        Returns:
            the new programs.
        """
        gain, roofline, haste = weights
        steps = max(1, self._dqn.programs // self._dqn.walkers)
        places, shares = dict(enumerate(starts)), self._shares(starts)
        pool = ProgramPool([], np.zeros((0, 1, 1), np.float32), np.zeros(0))
        pending: dict[int, tuple[np.ndarray, float]] = {}  # what waits for the actions after it
        for left in reversed(range(steps + 1)):
            taken: dict[int, tuple[Key, np.ndarray]] = {}
            for walker, key in places.items():
                moves = self._moves(key, seen) if left else []
                actions = self._actions(key, moves, (scores[key], shares[key], left / steps))
                if walker in pending:
                    self._agent.remember(Transition(*pending.pop(walker), actions))
                if moves:
                    chosen = self._agent.choose(actions)
                    taken[walker] = moves[chosen], actions[chosen]
                    seen.add(moves[chosen])
            arrived = [key for key, _ in taken.values()]
            new = self._pool(key for key in arrived if key not in scores)
            scores |= zip(new.keys, map(float, new.scores), strict=True)
            shares = self._shares(arrived)
            for walker, (key, action) in taken.items():
                gained = scores[key] - scores[places[walker]]
                self._gains += abs(gained), 1.0
                scaled = gained * self._gains[1] / max(self._gains[0], 1e-12)
                pending[walker] = action, gain * scaled + roofline * shares[key] + haste * (left - 1) / steps
            places, pool = {walker: key for walker, (key, _) in taken.items()}, pool + new
            self._agent.learn()
        return pool

    def _moves(self, key: Key, seen: set[Key]) -> list[Key]:
        """Return the programs that are one step away, without those seen, refused by TVM or failed."""
        number, decisions = key
        keys = [(number, moved) for moved in self.spaces[number].adjacent(decisions)]
        return [
            key for key in keys if key not in seen and key not in self._tried and isfinite(self.latencies.get(key, 0.0))
        ]

    def _actions(self, key: Key, moves: Sequence[Key], state: tuple[float, float, float]) -> np.ndarray:
        """Return a row for each move, float32 (n, width): where it leads, what it changes, and three more numbers.

        Args:
            state: the program's score, its share of the roofline, and the share of the episode that is left.
        """
        here, *there = (self._numbers(program) for program in (key, *moves))
        rows = [np.concatenate([other, other - here, state]) for other in there]
        return np.array(rows, np.float32).reshape(len(moves), 2 * self._width + 3)

    def _numbers(self, key: Key) -> np.ndarray:
        """Return decisions as logarithms, and which design space they are of: (width,)."""
        number, decisions = key
        row = np.zeros(self._width)
        values = [x for d in decisions for x in (d if isinstance(d, tuple) else (d + 3,))]  # locations begin at -2
        row[: len(values)] = np.log2(values) / _SCALE
        row[number - len(self.spaces)] = 1
        return row

    def _shares(self, keys: Sequence[Key]) -> Mapping[Key, float]:
        """Return the share of the machine's peak that each program's memory accesses allow, at most 1.

        It is the paper's CS / MS: the time of computing over that of what the tiles read. The cost model's scores give
        it, where it has them (`Fasor`), else the tiles themselves.
        """
        if not self._dqn.roofline:
            return dict.fromkeys(keys, 0.0)
        shares = dict[Key, float]()
        for number, space in enumerate(self.spaces):
            own = [decisions for n, decisions in keys if n == number]
            if own:
                ratios = np.minimum(1.0, self._intensity(space, own) / self._dqn.ridge)
                shares |= {(number, decisions): float(x) for decisions, x in zip(own, ratios, strict=True)}
        return shares

    def _intensity(self, space: DesignSpace, programs: Sequence[Decisions]) -> np.ndarray:
        """Return the operations a byte of programs of a design space, (N,)."""
        estimated = self._model.intensity(space.template, programs)
        if estimated is not None:
            return estimated
        rows = skeleton(space.template, get_schema(f"nest-{self._kind}"), None).features(programs)[:, 0]
        return intensity(rows, self._kind)


def search_class(settings: DecisionSettings) -> type[DecisionSearch]:
    """Return the search over decisions with the proposer that the settings name."""
    return DecisionSearch if settings.dqn is None else DQNSearch


def _layers(width: int, hidden: int) -> torch.nn.Sequential:
    """Return the three fully connected layers of Fasor's figure 5."""
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    return torch.nn.Sequential(linear(width, hidden), relu(), linear(hidden, hidden), relu(), linear(hidden, 1))


def _values(network: torch.nn.Module, actions: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return network(torch.from_numpy(actions)).squeeze(1).numpy()
