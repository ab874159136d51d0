"""What can go wrong, as a reader of the message sees it.

Every error a user can cause or fix is an `EvictProfileError`: one sentence that
names the file or field and the fix. The command line prints it and exits with 2;
anything else is a defect of ours and keeps its traceback.
"""


class EvictProfileError(Exception):
    """Base of every error that a user can act on."""


class ConfigError(EvictProfileError):
    """A YAML, JSON or command-line value cannot be used as given."""


class StoreError(EvictProfileError):
    """Samples on disk are missing, damaged, or of another fingerprint."""


class TableError(EvictProfileError):
    """A cost table is damaged, of an unknown schema, or does not match its key."""


class TraceError(EvictProfileError):
    """A trace is damaged, of an unknown schema, or lacks what is asked of it."""


class PlanError(EvictProfileError):
    """A draft tree cannot be truncated with what was given."""


class GateError(EvictProfileError):
    """A measurement is not good enough to become a cost table."""


class Interrupted(EvictProfileError):
    """Ctrl-C ended the work; what was measured is kept."""


class RunnerError(EvictProfileError):
    """A runner could not start, broke off, or failed the union test."""
