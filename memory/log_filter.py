"""Keeps secrets out of the log, whoever writes there: it stands where lines leave the process."""

import logging

from memory.redaction import PatternRedactor


class RedactingFormatter(logging.Formatter):
    """Formats a record, its traceback included, and takes secrets out of what came of it.

    Args:
        format: of a line.
        redactor: finds keys, those of the service among them.
    """

    def __init__(self, format: str, redactor: PatternRedactor) -> None:
        super().__init__(format)
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        """Return a line without secrets."""
        return self._redactor.redact(super().format(record))
