"""A design space of MetaSchedule as data: instructions that all its programs share, and the domain of each decision.

TVM replays a whole schedule, 5 to 20 ms, for every program that its evolutionary search looks at. What our models
read follows from the decisions alone, so that programs can be drawn, varied and ranked without TVM, and only the
few to be measured are replayed.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate, product, takewhile
from math import log2, prod
from random import Random
from typing import Any

from tvm import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace

from ...zoo.corpus.tir import flops_of
from ...zoo.primitives.instructions import SAMPLERS
from ...zoo.primitives.metaschedule import Template
from ...zoo.primitives.scope import Decision
from ..device.candidate import trace_json
from .design_slots import ChoiceSlot, Slot, TileSlot, divisors, rescale, weighted

Decisions = tuple[Decision, ...]
"""The answer of each sampling instruction of a space, in order."""

_END = "EnterPostproc"
TILES = ("SamplePerfectTile", "SamplePartitionedTile")
# Random replays that must bring no new value in a row before a slot's values count as learnt; and in all, at most.
QUIET_REPLAYS, MAX_REPLAYS = 2, 8
# TVM takes seeds from 1 to this.
_SEEDS = 2**31 - 1
# Of random tiles of a small product one in a hundred makes a block of enough threads.
_MOST_DRAWS = 64
# Factors of each spatial loop of a product on a CPU; the last ones make the tile that its accumulators hold.
_LEVELS = 4
# Floats of the registers over which an element is spread as it is read, without a register of its own. A core of
# Cascade Lake has 133 GFLOP/s in tiles of 7 x 64, 124 in 6 x 64, and 105 in 14 x 32.
_SPREADING = 16
# Times the operations of the task that a program may take: halos are computed twice, but a row that is computed for
# each of its thousands of numbers takes seconds.
_MOST_WORK = 32
_LEAST_THREADS, _MOST_THREADS = (f"meta_schedule.thread_extent_{end}_inclusive" for end in ("low", "high"))


class DesignSpace:
    """One schedule of `context.generate_design_space()`, open in its decisions.

    The instruction `meta_schedule.parallel`, which TVM's search varies by replacing an instruction, stays as the
    space has it: as many jobs as its schedule rule allows.

    Args:
        mod: the unscheduled module.
        postprocs: MetaSchedule's postprocessors for its target.
        schedule: one of its design spaces.
        seed: of the random replays by which unknown domains are learnt.
        registers: of the CPU that the programs are for, see `extensions.vector_registers`.

    Attributes:
        kernel: see `kernel_class`.
        template: the primitives, for features without TVM.
    """

    def __init__(
        self,
        mod: IRModule,
        postprocs: Sequence[Any],
        schedule: Any,
        seed: int = 0,
        registers: tuple[int, int] | None = None,
    ) -> None:
        self._mod, self._flops = mod, flops_of(mod)
        self._postprocs = list(postprocs)
        trace = schedule.trace.simplified(remove_postproc=True)  # as TVM's search does: getters of no use go
        self._instructions = list(trace.insts)
        instructions, decided = trace_json(trace)
        self._identity = _identity(instructions)
        self.kernel = kernel_class(instructions)
        self.template = Template(instructions)
        answers = dict(_answers(decided))
        self._original = tuple(answers[i] for i in self.template.samplers)
        self._threads = _block_threads(instructions, self.template.samplers)
        levels = [len(tile) if isinstance(tile, tuple) else 0 for tile in self._original]
        self._spatial = [number for number, count in enumerate(levels) if count == _LEVELS] if registers else []
        self._registers = registers or (0, 1)
        self._seed = seed

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Return the domain of each decision; domains that only TVM knows are learnt at the first use."""
        return self._learn(self._seed)

    @cached_property
    def _varied(self) -> tuple[list[int], list[int]]:
        """The decisions that can be varied, and the sums of their weights."""
        numbers = [i for i, slot in enumerate(self.slots) if slot.choices > 1]
        return numbers, list(accumulate(10 if isinstance(self.slots[i], TileSlot) else 1 for i in numbers))

    @property
    def size(self) -> int:
        """Return the number of programs in the space, at most."""
        return prod(slot.choices for slot in self.slots)

    # Programs as decisions -----------------------------------------------------------------------------

    def random(self, rng: Random, count: int) -> list[Decisions]:
        """Return random programs, each decision drawn on its own."""
        if not self.slots:
            return [()] * count
        drawn: list[Decisions] = []
        for _ in range(_MOST_DRAWS if self._threads[0] or self._spatial else 1):
            rows = zip(*(slot.draw(rng, count) for slot in self.slots), strict=True)
            drawn += [decisions for decisions in rows if self.fits(decisions)]
            if len(drawn) >= count:
                break
        if not drawn and self._spatial:  # where TVM alone knows the tiles, it may have shown none that is small enough
            self._spatial = []
            return self.random(rng, count)
        return drawn[:count]

    def fits(self, decisions: Decisions) -> bool:
        """Return whether a program suits the device.

        On a card, a block has as many threads as its schedule allows. On a CPU the tile of a product stays in the
        vector registers, and so do a row of the other factor and one element of the first, which is spread over a
        register, or with AVX-512 as it is read: what does not fit is written to memory and read again for each
        multiplication.
        """
        if not self._in_registers([decisions[number][-1] for number in self._spatial]):  # pyright: ignore[reportIndexIssue]
            return False
        parts, low, high = self._threads
        tiles = [(decisions[number], part) for number, part in parts]
        return not parts or low <= prod(tile[part] for tile, part in tiles if isinstance(tile, tuple)) <= high

    def _in_registers(self, tile: Sequence[int]) -> bool:
        """Return whether a product's innermost tile, its columns last, leaves vector registers to spare."""
        count, lanes = self._registers
        *rows, columns = tile or (1,)
        needed = (prod(rows) + 1) * (columns // lanes) + (lanes < _SPREADING)
        return not rows or columns % lanes != 0 or needed <= count

    def mutate(self, decisions: Decisions, rng: Random) -> Decisions:
        """Vary one decision; tiles come up ten times as often as other decisions, as in TVM's mutators."""
        numbers, chances = self._varied
        if not numbers:
            return decisions
        (index,) = rng.choices(numbers, cum_weights=chances)
        varied = list(decisions)
        varied[index] = self.slots[index].mutate(decisions[index], rng)
        return tuple(varied)

    def adjacent(self, decisions: Decisions) -> Iterator[Decisions]:
        """Yield the programs that differ in one decision by one step, in the same order for the same program."""
        for index, slot in enumerate(self.slots):
            for value in slot.adjacent(decisions[index]):
                moved = (*decisions[:index], value, *decisions[index + 1 :])
                if self.fits(moved):
                    yield moved

    def cross(self, a: Decisions, b: Decisions, rng: Random) -> Decisions:
        """Take each decision from either parent."""
        return tuple(x if rng.random() < 0.5 else y for x, y in zip(a, b, strict=True))

    def read(self, trace: Sequence[Any]) -> Decisions | None:
        """Return the decisions of a program's `[instructions, decisions]`, None when it is of another space."""
        if _identity(trace[0]) != self._identity:
            return None
        answers = dict(_answers(trace[1]))
        if any(i not in answers for i in self.template.samplers):
            return None
        return tuple(answers[i] for i in self.template.samplers)

    @property
    def numbers(self) -> int:
        """Return how many numbers the decisions of a program hold: the factors of a tile, and one of any other."""
        return sum(len(value) if isinstance(value, tuple) else 1 for value in self._original)

    @property
    def extents(self) -> tuple[int, ...]:
        """Return the extents of the loops that are tiled."""
        return extents(self._original)

    def carry_over(self, decisions: Decisions) -> Decisions:
        """Return the decisions of a task of the same kernel class, with their tiles rescaled to this one's extents.

        Where the other task's device has more vector registers, or longer ones, a product's innermost tile shrinks.
        """
        rescaled = tuple(
            rescale(value, _extent(own), max(0, int(self._instructions[index].attrs[1])))
            if isinstance(value, tuple) and isinstance(own, tuple)
            else value
            for index, value, own in zip(self.template.samplers, decisions, self._original, strict=True)
        )
        return self._shrunk(rescaled) if self._spatial else rescaled

    def _shrunk(self, decisions: Decisions) -> Decisions:
        """Return a program whose innermost tile fits the vector registers, with outer factors as near as can be.

        Of the tiles that fit it has the one of most multiplications for each row and vector that is loaded, and of
        equal ones the nearest to the tile of `decisions`. Rows of other loops than the last, which may be a batch and
        share no vectors, only shrink.
        """
        tiles = [tuple[int, ...](decisions[number]) for number in self._spatial]  # pyright: ignore[reportArgumentType]
        if self._in_registers([own[-1] for own in tiles]):
            return decisions
        count, lanes = self._registers

        def worth(tile: Sequence[int]) -> tuple[float, float]:
            *rows, columns = tile
            height, vectors = prod(rows), columns / lanes
            apart = sum(abs(log2(size / own[-1])) for size, own in zip(tile, tiles, strict=True))
            return height * vectors / (height + vectors), -apart

        largest = [own[-1] for own in tiles[:-2]] + [count]
        rows = [[n for n in divisors(prod(own)) if n <= most] for own, most in zip(tiles[:-1], largest, strict=True)]
        # A power of two vectors, see `rescale`.
        columns = [n for n in divisors(prod(tiles[-1])) if n % lanes == 0 and n & (n - 1) == 0 and n <= tiles[-1][-1]]
        best = max(filter(self._in_registers, product(*rows, columns)), key=worth)
        shrunk = list(decisions)
        for number, own, size in zip(self._spatial, tiles, best, strict=True):
            outer = (*own[:-2], own[-2] * own[-1] // size or 1)  # the block of the caches stays
            shrunk[number] = (*rescale(outer, prod(own) // size), size)
        return tuple(shrunk)

    # Programs in TVM -----------------------------------------------------------------------------------

    def replay(self, decisions: Decisions) -> Any | None:
        """Return the program as a `MeasureCandidate`, post-processed.

        None when TVM or a postprocessor refuses it, or where it computes the same over and over again.
        """
        schedule = self._apply(dict(zip(self.template.samplers, decisions, strict=True)))
        if schedule is None:
            return None
        schedule.enter_postproc()
        try:
            if not all(postproc.apply(schedule) for postproc in self._postprocs):
                return None
        except Exception:  # TVM raises errors of every class where a postprocessor meets what it cannot rewrite
            return None
        if self._flops and flops_of(schedule.mod) > _MOST_WORK * self._flops:
            return None  # e.g. the sum of a softmax for each of its numbers
        return ms.MeasureCandidate(schedule, ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True))

    def decisions_of(self, candidate: Any) -> Decisions:
        """Return the decisions of a replayed program: TVM moves a decision that the others made invalid."""
        return self._decisions(candidate.sch)

    def _apply(self, decisions: dict[int, Decision], seed: int | None = None) -> Any | None:
        """Return the scheduled module before post-processing; what is not decided is sampled by TVM."""
        schedule: Any = Schedule(self._mod, seed=seed, debug_mask="none", error_render_level="none")
        answers = {self._instructions[i]: list(d) if isinstance(d, tuple) else d for i, d in decisions.items()}
        try:
            Trace(self._instructions, answers).apply_to_schedule(schedule, remove_postproc=True)
        except Exception:  # TVM raises errors of every class for a schedule that cannot be
            return None
        return schedule

    def _decisions(self, schedule: Any) -> Decisions:
        instructions, decided = schedule.trace.insts, schedule.trace.decisions
        return tuple(_plain(decided[instructions[i]]) for i in self.template.samplers)

    # Domains -------------------------------------------------------------------------------------------

    def _learn(self, seed: int) -> tuple[Slot, ...]:
        """Return the slots, from the instructions where they suffice, else from random replays."""
        kinds = [self._instructions[i].kind.name for i in self.template.samplers]
        varying = {i for i, kind in enumerate(kinds) if kind not in (*TILES, "SampleCategorical")}
        seen: list[set[Decision]] = [{value} for value in self._original]
        quiet = 0
        for decisions in self._random_replays(seed):
            tiles = [i for i, kind in enumerate(kinds) if kind in TILES]
            changed = {i for i in tiles if _extent(decisions[i]) != _extent(self._original[i])} - varying
            varying |= changed
            news = [i for i in varying if decisions[i] not in seen[i]]
            for values, value in zip(seen, decisions, strict=True):
                values.add(value)
            quiet = 0 if news or changed else quiet + 1
            if quiet >= QUIET_REPLAYS:
                break
        return tuple(
            _seen(seen[number]) if number in varying else self._slot(index, number)
            for number, index in enumerate(self.template.samplers)
        )

    def _random_replays(self, seed: int) -> Iterator[Decisions]:
        if not self.template.samplers:
            return
        for attempt in range(MAX_REPLAYS):
            schedule = self._apply({}, (seed * MAX_REPLAYS + attempt) % _SEEDS + 1)
            if schedule is not None:
                yield self._decisions(schedule)

    def _slot(self, index: int, number: int) -> Slot:
        instruction = self._instructions[index]
        if instruction.kind.name == "SampleCategorical":
            return weighted([float(weight) for weight in instruction.attrs[1]])
        parts, *limits = (int(x) for x in instruction.attrs)
        extent = _extent(self._original[number])
        if instruction.kind.name == "SamplePartitionedTile":
            return TileSlot(extent, parts, inner=limits[0], multiple=limits[1])
        return TileSlot(extent, parts, max(limits[0], 0))


def _block_threads(instructions: Sequence[Any], samplers: Sequence[int]) -> tuple[list[tuple[int, int]], int, int]:
    """Return the tile parts, as decision and position, whose product is the threads of a block, and its bounds.

    Where a block is executed by warps, the threads are warps.
    """
    parts: dict[str, list[tuple[int, int]]] = {}  # of a sampled number, or of a loop that is split or fused by them
    threads: list[tuple[int, int]] = []
    bounds = {_LEAST_THREADS: 1, _MOST_THREADS: _SEEDS}
    lanes = 1
    for index, (name, inputs, attrs, outputs) in enumerate(instructions):
        if name in TILES:
            parts |= {output: [(samplers.index(index), part)] for part, output in enumerate(outputs)}
        elif name == "Split":
            parts |= {loop: parts[size] for loop, size in zip(outputs, inputs[1:], strict=True) if size in parts}
        elif name == "Fuse" and all(loop in parts for loop in inputs):
            parts[outputs[0]] = [part for loop in inputs for part in parts[loop]]
        elif name == "Bind" and (attrs[0] == "threadIdx.x" or (attrs[0] == "threadIdx.y" and inputs[0] in parts)):
            threads = parts.get(inputs[0], [])
        elif name == "Annotate" and attrs[0] in bounds:
            bounds[attrs[0]] = int(inputs[1])
        elif name == "Annotate" and attrs[0] == "warp_execution":
            lanes = 32
    return threads, -(-bounds[_LEAST_THREADS] // lanes), bounds[_MOST_THREADS] // lanes


def _extent(tile: Decision) -> int:
    return prod(tile) if isinstance(tile, tuple) else tile


def _seen(values: set[Decision]) -> ChoiceSlot:
    """Return a slot of the values seen; of locations also those between, which TVM moves to the next valid one."""
    numbers = {value for value in values if isinstance(value, int)}
    between = range(max(numbers) + 1) if numbers else ()
    return ChoiceSlot(tuple(sorted(values.union(between), key=str)))


def _answers(pairs: Sequence[Any]) -> Iterator[tuple[int, Decision]]:
    for index, answer in pairs:
        yield int(index), tuple(map(int, answer)) if isinstance(answer, list) else int(answer)


def _plain(answer: Any) -> Decision:
    return tuple(int(x) for x in answer) if hasattr(answer, "__len__") else int(answer)


def kernel_class(instructions: Sequence[Any]) -> str:
    """Return the sampling instructions of a design space, which tasks share that differ in their extents.

    What follows a product in one kernel, a residual addition for one, is left out where it adds no decision.
    """
    names = ((str(name), list(attrs)) for name, _, attrs, _ in _before_postproc(instructions))
    return str([(name, attrs) for name, attrs in names if name in SAMPLERS])


def _identity(instructions: Sequence[Any]) -> str:
    """Return the instructions up to post-processing, which a space's programs share, the number of jobs left out."""
    kept = []
    for name, inputs, attrs, outputs in _before_postproc(instructions):
        jobs = name == "Annotate" and list(attrs)[:1] == ["meta_schedule.parallel"]
        kept.append((str(name), str(inputs[:1] if jobs else inputs), str(attrs), str(outputs)))
    return str(kept)


def _before_postproc(instructions: Sequence[Any]) -> Iterator[Any]:
    return takewhile(lambda instruction: instruction[0] != _END, instructions)


def decisions_of_trace(trace: Sequence[Any]) -> Decisions:
    """Return the decisions of a program `[instructions, decisions]`, whatever its design space."""
    end = sum(1 for _ in _before_postproc(trace[0]))
    return tuple(answer for index, answer in sorted(_answers(trace[1])) if index < end)


def extents(decisions: Decisions) -> tuple[int, ...]:
    """Return the extents of the loops that some decisions tile."""
    return tuple(prod(tile) for tile in decisions if isinstance(tile, tuple))
