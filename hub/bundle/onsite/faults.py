"""How measuring on site can fail."""

from __future__ import annotations


class OnsiteError(Exception):
    """Measuring cannot go on; `code` is the exit code of `run.py`.

    2: the bundle or the results are damaged or do not fit each other. 3: this machine cannot run the bundle.
    4: nearly every program fails.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class ProgramError(Exception):
    """One program cannot be run; `fatal` where the process that ran it must not run another."""

    def __init__(self, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.fatal = fatal
