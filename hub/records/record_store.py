"""A MetaSchedule database whose programs are on disk, and of which memory holds next to nothing.

TVM's `JSONDatabase` keeps the trace of every record, 16 KiB for a matrix product, which is 160 MiB after ten thousand
programs; it replays all of them when it is opened; and it does not look at what became of a line that it wrote. This
one writes the same files, remembers where the lines of the fastest programs are, and replays those that are asked for.
"""

from __future__ import annotations

import json
from bisect import insort
from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.database import PyDatabase, TuningRecord, Workload
from tvm.s_tir.meta_schedule.utils import shash2hex

from ...zoo.files import append
from ..device.candidate import record_json
from .record_lines import RECORDS, WORKLOADS, StoredProgram, read_lines, read_programs, read_record

if TYPE_CHECKING:
    from tvm import IRModule

# Programs of a workload of which memory knows the place; more are looked for on disk.
KEPT = 64

_Place = tuple[float, int]
"""Mean latency in seconds, and where the line begins."""


@derived_object
class RecordStore(PyDatabase):
    """The database of a folder; `JSONDatabase` can open the folder too, as this one can what that one wrote.

    TVM's own methods (`commit_tuning_record` ...) pass through C++, where an error loses its class; `put` and
    `workload_of` do not.

    Args:
        folder: of the two files; must exist.
        kept: programs of a workload whose places are remembered, and whose traces are once they were asked for.

    Attributes:
        unfit: where the lines of programs begin that TVM could not replay; these are not offered.

    Raises:
        RunStateError: a line of the files is damaged.
    """

    def __init__(self, folder: Path, kept: int = KEPT) -> None:
        self._workload_file, self._record_file = folder / WORKLOADS, folder / RECORDS
        self._kept = kept
        self._workloads: list[Any] = [Workload.from_json(value) for value in read_lines(self._workload_file)]
        self._lines = {shash2hex(workload.mod): line for line, workload in enumerate(self._workloads)}
        self._best: defaultdict[int, list[_Place]] = defaultdict(list)
        self._replayed: dict[int, Any] = {}
        self.unfit: set[int] = set()
        self._count = 0
        self._size = 0
        for program in read_programs(self._record_file):
            self._remember(program)
        self._size = self._record_file.stat().st_size if self._record_file.exists() else 0

    # For Python ------------------------------------------------------------------------------------------

    def workload_of(self, mod: IRModule) -> Any:
        """The workload of a module, stored if it is new.

        Raises:
            StorageError: it cannot be written.
        """
        name = shash2hex(mod)
        if name not in self._lines:
            workload: Any = Workload(mod)
            append(self._workload_file, _line(workload.as_json()))
            self._lines[name] = len(self._workloads)
            self._workloads.append(workload)
        return self._workloads[self._lines[name]]

    def put(self, record: Any) -> None:
        """Store a record; it is on disk when this returns.

        Raises:
            StorageError: it cannot be written; what was stored before is as it was.
        """
        self.workload_of(record.workload.mod)
        line = self._lines[shash2hex(record.workload.mod)]
        value = record_json(record)
        text = _line([line, value])
        append(self._record_file, text)
        self._remember(StoredProgram(self._size, line, value[0], tuple(value[1] or ())))
        self._size += len(text)

    def programs(self, mod: IRModule) -> Iterator[StoredProgram]:
        """All programs of a module in the order in which they were measured, read one by one, none replayed."""
        line = self._lines.get(shash2hex(mod))
        return iter(()) if line is None else read_programs(self._record_file, line)

    def latest(self, mod: IRModule, count: int) -> list[Any]:
        """The last `count` records of a module, in the order in which they were measured."""
        latest = deque(self.programs(mod), maxlen=count)
        return [record for p in latest if (record := self._parsed(p.workload, p.offset)) is not None]

    # For MetaSchedule ------------------------------------------------------------------------------------

    def has_workload(self, mod: IRModule) -> bool:
        """Whether the module was committed."""
        return shash2hex(mod) in self._lines

    def commit_workload(self, mod: IRModule) -> Any:
        """As `workload_of`."""
        return self.workload_of(mod)

    def commit_tuning_record(self, record: Any) -> None:
        """As `put`."""
        self.put(record)

    def get_top_k(self, workload: Any, top_k: int) -> list[Any]:
        """The fastest valid records of a workload, fastest first."""
        line = self._lines.get(shash2hex(workload.mod))
        if line is None:
            return []
        places = self._best[line]
        if top_k > self._kept:
            places = sorted((p.mean, p.offset) for p in read_programs(self._record_file, line) if p.valid)
        records = (self._replay(line, offset) for _, offset in places)
        return list(islice((record for record in records if record is not None), top_k))

    def get_all_tuning_records(self) -> list[Any]:
        """Every record, fastest first: each is replayed, and the list holds them all."""
        places = sorted((p.mean, p.offset, p.workload) for p in read_programs(self._record_file))
        return [record for _, offset, line in places if (record := self._parsed(line, offset)) is not None]

    def __len__(self) -> int:
        return self._count

    # Memory ----------------------------------------------------------------------------------------------

    def _remember(self, program: StoredProgram) -> None:
        self._count += 1
        if program.valid:
            best = self._best[program.workload]
            insort(best, (program.mean, program.offset))
            for _, offset in best[self._kept :]:
                self._replayed.pop(offset, None)
            del best[self._kept :]

    def _replay(self, line: int, offset: int) -> Any | None:
        """A record that MetaSchedule asks for every round: kept while it is one of the best."""
        if offset in self._replayed:
            return self._replayed[offset]
        record = self._parsed(line, offset)
        if record is not None and any(offset == place for _, place in self._best[line]):
            self._replayed[offset] = record
        return record

    def _parsed(self, line: int, offset: int) -> Any | None:
        if offset in self.unfit:
            return None
        value = read_record(self._record_file, offset)
        try:
            return TuningRecord.from_json(value, self._workloads[line])
        except Exception:  # TVM raises errors of every class for a trace that speaks of other blocks or loops
            self.unfit.add(offset)
            return None


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"
