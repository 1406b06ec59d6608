"""How a process writes its log: for people, or one JSON object a line. The one place that sets up logging.

Every logger's lines, third parties' too, go through one handler of the root logger to stderr. Facts beside the message
are given as `log.info("...", extra={"fields": {...}})`: JSON has them as keys of their own, people read the message.
Knows no component and no request.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal

LogFormat = Literal["human", "json"]

log = logging.getLogger("v4serve")

_HUMAN = "%(asctime)s %(levelname)s %(name)s: %(message)s"
CLOCK = "%H:%M:%S"  # local; who reads along knows the day


def configure(log_format: LogFormat) -> None:
    """Write what is INFO or worse to stderr. Called once, when a process starts; where handlers are, they stay."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(_HUMAN, CLOCK))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if log_format == "json":  # these write to stderr by themselves, over many lines
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught


def writes_json() -> bool:
    """Whether this process logs so: then all that it says on stderr should be."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def relayed(process: str, line: str) -> str:
    """A line that another process wrote, as JSON that names it; text that is no JSON object becomes the message."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict):
        entry = _entry(datetime.now(UTC), "INFO", process, line)
    return _dumps({**entry, "process": process})


class JsonFormatter(logging.Formatter):
    """time (RFC 3339, UTC), level, logger, message, exception if there is one, then the record's `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        entry = _entry(datetime.fromtimestamp(record.created, UTC), record.levelname, record.name, record.getMessage())
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            entry["stack"] = record.stack_info
        fields: Mapping[str, object] = getattr(record, "fields", {})
        return _dumps(entry | {name: value for name, value in fields.items() if name not in entry})


def _entry(time: datetime, level: str, logger: str, message: str) -> dict[str, object]:
    moment = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"time": moment, "level": level, "logger": logger, "message": message}


def _dumps(entry: Mapping[str, object]) -> str:
    """In ASCII, so that no terminal, locale or lone surrogate can break a line."""
    try:
        return json.dumps(entry, default=str, allow_nan=False)
    except ValueError:  # JSON has no such numbers
        return json.dumps(json.loads(json.dumps(entry, default=str), parse_constant=str))


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    log.critical("%s", kind.__name__, exc_info=(kind, error, trace))
