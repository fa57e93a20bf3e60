"""What can go wrong for a user, each kind with the exit code of the process.

0 is success, 1 a defect of ours (a traceback), 2 to 6 are below, 130 and 143 are
interruptions. Every message is a sentence: what was wrong, where, what would be right.
"""


class ConfigError(Exception):
    """The command line or the config asks for something that does not exist or cannot be."""

    exit_code = 2


class DataError(Exception):
    """A source, a stored corpus or an encoded split is missing, broken or not what it claims to be."""

    exit_code = 3


class RunError(Exception):
    """A run or a checkpoint is missing, broken or does not fit what it is used with."""

    exit_code = 4


class DivergedError(Exception):
    """Training reached a loss or gradient that is not finite."""

    exit_code = 5


class ResourceError(Exception):
    """Disk or memory ran out."""

    exit_code = 6


class Interrupted(BaseException):
    """A signal ended the work, after what was reached had been saved.

    Not an Exception, as KeyboardInterrupt is not: no library's `except Exception` may swallow it.
    """

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


USER_ERRORS = (ConfigError, DataError, RunError, DivergedError, ResourceError, Interrupted)
