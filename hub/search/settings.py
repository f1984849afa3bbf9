"""Settings of the searches: MetaSchedule's, tchub's over decisions, and Fasor's deep Q-network."""

from dataclasses import dataclass, field
from typing import Any

from tvm.s_tir import meta_schedule as ms

ENGINES = ("auto", "decisions", "dqn", "metaschedule")


@dataclass(frozen=True)
class DQNSettings:
    """Fasor's search by a deep Q-network (Huang et al. 2024, section 6.2), see `DQNSearch`.

    Attributes:
        drawn: programs drawn at random a round, beside which the first walks begin.
        programs: scored in an episode (the paper's 64).
        walkers: programs that are varied side by side in an episode, whose moves the model scores together.
        episodes: of a round at most; patience: the last ones in a row that brought nothing better, which end it.
        quality: weights of gain, roofline and haste in the reward, equation 3, of the high-quality mode.
        efficiency: the same of the high-efficiency mode, which is one episode, and measures nothing.
        roofline: False leaves the second term out.
        ridge: operations a byte at which the machine's compute and its second-level cache take the same time; `tune`
            takes that of the roofline that it measured.
        first_random, last_random: share of random moves, which falls from one to the other; decay: of that, a move.
        discount: of later rewards. The paper's 0.95 is for a network that was trained beforehand; one that begins with
            nothing learns slower by it than it searches.
        memory: moves that are kept; batch: of them in an update; updates: of the network for each move of all walkers.
        sync: updates until the target network takes the weights over.
        hidden: width of the network's two hidden layers; rate: of learning.
    """

    drawn: int = 32
    programs: int = 64
    walkers: int = 8
    episodes: int = 16
    patience: int = 4
    quality: tuple[float, float, float] = (0.45, 0.35, 0.2)
    efficiency: tuple[float, float, float] = (0.35, 0.25, 0.4)
    roofline: bool = True
    ridge: float = 4.0
    first_random: float = 0.9
    last_random: float = 0.1
    decay: float = 0.98
    discount: float = 0.5
    memory: int = 2048
    batch: int = 32
    updates: int = 4
    sync: int = 8
    hidden: int = 64
    rate: float = 1e-2


@dataclass(frozen=True)
class DecisionSettings:
    """Search in decision space.

    Attributes:
        random: programs drawn at random a round.
        generations: how often the best are varied; 0: the random programs and the measured ones' neighbours only.
        blind: the same before anything of the task was measured: bred for longer against a model that nothing has
            corrected yet, programs are what it is wrong about.
        children: programs of each generation, and neighbours of measured programs.
        parents: best programs that children descend from; of measured ones, a quarter as many.
        mutations: share of children that are mutants of one parent; the others are mutants of a cross of two parents
            of one design space.
        epsilon: share of a batch that is drawn at random.
        apart: least distance of two programs of a batch, as a share of the median distance between random programs,
            before anything of the task was measured; near: the same afterwards.
        walks: share of a batch that is one step away from the fastest program then.
        attempts: programs replayed at most for each one asked for.
        dqn: let a deep Q-network propose the programs, instead of random draws and breeding; None: breed them.
    """

    random: int = 1024
    generations: int = 4
    blind: int = 2
    children: int = 512
    parents: int = 64
    mutations: float = 0.8
    epsilon: float = 0.05
    apart: float = 0.4
    near: float = 0.1
    walks: float = 0.25
    attempts: int = 24
    dqn: DQNSettings | None = None


@dataclass(frozen=True)
class SearchSettings:
    """The search engine, and how many programs it looks at.

    MetaSchedule's own defaults are a population of 512 and 4 generations, which score 2,560 programs and take half
    a minute a round on one core: at 128 trials ten times as long as the measurements. A population of 128 and 3
    generations score 512 for each round of a few trials.

    Attributes:
        population_size: programs of one generation.
        init_measured_ratio: share of the first generation taken from the database.
        init_min_unmeasured: random programs that the first generation needs at least.
        max_fail_count: attempts at those.
        genetic_num_iters: generations.
        genetic_mutate_prob: chance that a parent is mutated.
        genetic_max_fail_count: attempts at a valid mutation.
        eps_greedy: share of the picks that is random.
        engine: `decisions` searches without TVM, for models that read primitives; so does `dqn`, by Fasor's deep
            Q-network; `metaschedule` is TVM's evolutionary search, which all fields above are for; `auto` takes the
            first where the model can.
        decisions: of the search in decision space.

    Raises:
        ValueError: no such engine.
    """

    population_size: int = 128
    init_measured_ratio: float = 0.2
    init_min_unmeasured: int = 50
    max_fail_count: int = 5
    genetic_num_iters: int = 3
    genetic_mutate_prob: float = 0.85
    genetic_max_fail_count: int = 10
    eps_greedy: float = 0.05
    engine: str = "auto"
    decisions: DecisionSettings = field(default_factory=DecisionSettings)

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ValueError(f"engine must be one of {', '.join(map(repr, ENGINES))}, not {self.engine!r}")

    def strategy(self) -> Any:
        """Return MetaSchedule's search strategy."""
        own = {name: value for name, value in vars(self).items() if name not in ("engine", "decisions")}
        return ms.search_strategy.EvolutionarySearch(**own)
