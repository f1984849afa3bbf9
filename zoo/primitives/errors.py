"""What can go wrong when a schedule is read as primitives."""

from __future__ import annotations

from ..errors import TchubError


class TraceFormatError(TchubError):
    """A schedule trace that cannot be read as a primitive sequence.

    Fields: `index`, the position of the offending instruction (None when the trace as a whole is
    malformed), and `instruction`, its JSON form cut to 200 characters.
    """

    exit_code = 2

    def __init__(
        self, message: str, *, index: int | None = None, instruction: object = None, remedy: str | None = None
    ) -> None:
        super().__init__(
            message if index is None else f"{message} (instruction {index})",
            remedy=remedy
            or "Pass a trace of the form [instructions, decisions] as TVM 0.16 or later writes it in a "
            "MetaSchedule database or Trace.as_json().",
            index=index,
            instruction=None if instruction is None else str(instruction)[:200],
        )


class UnknownInstructionError(TraceFormatError):
    """An instruction whose name is not in the vocabulary: a newer TVM, or a typing error."""
