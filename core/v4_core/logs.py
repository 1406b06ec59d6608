"""Configures logging: human-readable lines or one JSON object per line. The only place that sets up logging.

All loggers, including those of libraries, write to stderr through one handler of the root logger. Structured fields are
passed as `log.info("...", extra={"fields": {...}})`: they become keys of the JSON object, and do not appear in
human-readable lines. Knows no component and no request.
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
CLOCK = "%H:%M:%S"  # local time; a person who follows the log knows the date


def configure(log_format: LogFormat) -> None:
    """Writes messages of level INFO and above to stderr. Call it once at the start; existing handlers are kept."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(_HUMAN, CLOCK))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if log_format == "json":  # warnings and uncaught exceptions would write several lines of text to stderr
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught


def writes_json() -> bool:
    """Whether this process logs JSON, so that everything else on stderr should be JSON too."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def relayed(process: str, line: str) -> str:
    """A line of another process as JSON with the process's name. Text that is not a JSON object becomes the message."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict):
        entry = _entry(datetime.now(UTC), "INFO", process, line)
    return _dumps({**entry, "process": process})


class JsonFormatter(logging.Formatter):
    """Formats a record as time (RFC 3339, UTC), level, logger, message, exception if any, and the record's `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns one line."""
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
    """JSON in ASCII, which no terminal, locale or lone surrogate can break."""
    try:
        return json.dumps(entry, default=str, allow_nan=False)
    except ValueError:  # NaN or infinity, which JSON does not have
        return json.dumps(json.loads(json.dumps(entry, default=str), parse_constant=str))


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    log.critical("%s", kind.__name__, exc_info=(kind, error, trace))
