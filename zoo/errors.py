"""The root of every error that tchub raises on purpose: typed, with fields, and with a remedy."""


class TchubError(Exception):
    """An error that a user can act on.

    Subclasses set `exit_code` and `kind`. Extra keyword arguments become attributes and fields of the
    error's JSON form.

    Attributes:
        message: the problem, in one line.
        remedy: the way out of it, in one line, or None.
        fields: the facts behind the message (a path, a name, a limit), JSON-serialisable.
    """

    exit_code = 1

    def __init__(self, message: str, *, remedy: str | None = None, **fields: object) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.fields = fields
        for name, value in fields.items():
            setattr(self, name, value)

    @property
    def kind(self) -> str:
        """Return the class name, which scripts may rely on."""
        return type(self).__name__

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form: error, message, remedy and the fields."""
        known: dict[str, object] = {"error": self.kind, "message": self.message, "remedy": self.remedy}
        return known | {
            k: v if isinstance(v, str | int | float | bool | list | dict | None) else str(v)
            for k, v in self.fields.items()
        }


class TchubWarning(UserWarning):
    """A fact that a user should know, and that stops nothing."""


def last_line(error: BaseException) -> str:
    """Return the last line of a compiler's error, below its stack of frames; its kind where it has no message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else repr(error))[:500]
