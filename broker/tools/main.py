"""The entry point of `pykafka`: runs one command, and prints errors in one line.

Exit status: 0 success; 1 failure; 2 wrong usage: a wrong option, argument, setting or configuration file. Of a command
that checks: 1 is a mismatch, 3 that it could not look at everything (broker/verdict.py). An error knows its status,
and `pykafka load` changes it to 75 where running it again helps. It is one line on standard error; `--debug` shows the
traceback.
"""

from __future__ import annotations

import gc
import logging
import signal
import sys
from collections.abc import Sequence

from broker.tools.kafka_scripts import own_words
from broker.tools.log_formatters import TextFormatter

NO_BROKER_HINT = "; `pykafka broker start` starts a broker, {} names a running one"


INTERRUPTED = 128 + signal.SIGINT


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if logging.lastResort is not None:  # prints warnings where a command configures no logging
        logging.lastResort.setFormatter(_SpokenFormatter("pykafka: %(message)s"))
    try:
        if given[:2] != ["broker", "start"] or not _started_broker(given[2:]):
            from broker.tools.console import build  # typer, and pydantic behind it: 9 MB

            words = own_words(given)
            build(words)(words, prog_name="pykafka")
    except KeyboardInterrupt:  # while modules are imported, too; what runs longer ends in its own way
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        # Imported only here: a run without an error need not pay for it.
        from broker.errors import ConnectionFailed, PykafkaError
        from broker.tools.console import fail
        from broker.verdict import CheckFailed

        if isinstance(error, UnicodeEncodeError) and (garbled := [word for word in given if not _is_text(word)]):
            fail(
                f"{garbled[0]!a} is not text in this terminal's encoding: set LC_ALL=C.UTF-8, and write it in UTF-8", 2
            )
        if "--debug" in given or not isinstance(error, (PykafkaError, OSError)):
            raise
        hint, cause = "", error.__cause__ if isinstance(error, CheckFailed) else error
        if isinstance(cause, ConnectionFailed) and "bootstrap.servers" in str(error):
            hint = NO_BROKER_HINT.format("--from or --to" if given[:1] == ["mirror"] else "--bootstrap-server")
        fail(f"{error}{hint}", getattr(error, "exit_status", 1))


def _is_text(word: str) -> bool:
    """Whether an argument could be decoded. A path may be any bytes, a name that goes to a broker is text."""
    return not any("\ud800" <= character <= "\udfff" for character in word)


class _SpokenFormatter(TextFormatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        from broker.tools.spelling import spoken

        return spoken(super().formatMessage(record))


def _started_broker(words: Sequence[str]) -> bool:
    """Run `broker start` without typer, which a broker has no use for.

    False, and nothing was done, for a command line that only typer can read.
    """
    # kio imports hypothesis where that is installed: 9 MB and 0.1 s, for tests only.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    gc.disable()  # what is imported stays: to look through it again and again takes 25 ms
    from broker.tools.run_broker import BrokerOptions, run_broker

    gc.enable()
    options = BrokerOptions.parse(words)
    if options is not None:
        run_broker(options)
    return options is not None


if __name__ == "__main__":
    main()
