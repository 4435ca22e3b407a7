"""The error of a command line that cannot be meant, told in one line with exit status 2.

Raised by the commands where typer itself cannot see it: options that need or exclude each other, a value in no known
form. What is wrong in a file, or only a broker can know, is exit status 1.
"""

from __future__ import annotations

from broker.errors import ConfigError

__all__ = ["UsageError", "one_of_options"]


class UsageError(ConfigError):
    """Wrong usage; `main` ends with its status."""

    exit_status = 2


def one_of_options(**options: object) -> str:
    """The one option that was given, by name. Raises UsageError for none and for several."""
    given = [name for name, value in options.items() if value not in (None, False, [], ())]
    if len(given) != 1:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in options)
        raise UsageError(f"give one of {names}" + (f", not {len(given)} of them" if given else ""))
    return given[0]
