"""Errors that a user can cause or fix.

The message is one sentence that names the file or field and the remedy. The command
line prints it and exits with 2. Any other exception is a defect with a traceback.
"""


class EvictProfileError(Exception):
    """Base of every error that a user can act on."""


class ConfigError(EvictProfileError):
    """A value of a file, an option or an argument cannot be used."""


class DataError(EvictProfileError):
    """Samples, a cost table or a trace is missing, damaged, or not what is asked."""


class MeasurementError(EvictProfileError):
    """A measurement failed, or is not good enough for a cost table."""


class Interrupted(EvictProfileError):
    """Ctrl-C ended the work; what was measured is kept."""
