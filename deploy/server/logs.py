"""Logs as JSON lines. No line has a text of a request, a vector or a key."""

from __future__ import annotations

import datetime
import logging
import sys
from typing import Any

import orjson

from cse.errors import one_line

log = logging.getLogger("cse.server")


class JsonLines(logging.Formatter):
    """Format a record as one JSON object; ``extra={"facts": {...}}`` adds keys."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": when, "level": record.levelname.lower(), "event": one_line(record.getMessage())}
        line |= getattr(record, "facts", {})
        if record.exc_info and record.exc_info[0] is not None:
            # the message of an unforeseen error may quote a text, so only its kind and place are kept
            trace = record.exc_info[2]
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            line["error"] = record.exc_info[0].__name__
            if trace is not None:
                line["at"] = f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
        return orjson.dumps(line, default=str).decode()


def set_up() -> None:
    """Write the server's and uvicorn's logs to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("cse", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler] if name != "uvicorn.error" else []
        logger.setLevel(logging.INFO)
        logger.propagate = name == "uvicorn.error"
