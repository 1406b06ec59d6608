"""Log lines: what each format writes, and that every logger of a process goes through it."""

import json
import logging
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from v4_core.logs import JsonFormatter, relayed

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
SAY = """
import logging, sys, warnings
from v4_core.logs import configure
configure(sys.argv[1])
"""


def said(log_format: str, script: str, code: int = 0) -> list[str]:
    """Lines on stderr of a process that logs so."""
    command = [sys.executable, "-c", SAY + script, log_format]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (code, "")
    return ended.stderr.splitlines()


def formatted(message: str, fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A record through the JSON format."""
    record = logging.LogRecord("v4serve.worker", logging.INFO, "file", 1, message, (), None)
    record.fields = fields
    record.__dict__.update(more)
    line = JsonFormatter().format(record)
    assert line.isascii()
    assert "\n" not in line
    entry: dict[str, Any] = json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    return entry


def test_people_read_time_level_logger_and_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC-5")  # five hours ahead
    before = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=5)
    [line] = said("human", 'logging.getLogger("v4serve.worker").info("%d blocks", 3, extra={"fields": {"a": 1}})')
    clock, _, rest = line.partition(" ")
    assert rest == "INFO v4serve.worker: 3 blocks"
    time = datetime.strptime(clock, "%H:%M:%S").replace(tzinfo=UTC)
    assert (time - before) % timedelta(days=1) < timedelta(minutes=30)


def test_programs_read_one_object_a_line() -> None:
    [line] = said("json", 'logging.getLogger("v4serve.worker").info("%d blocks", 3, extra={"fields": {"blocks": 3}})')
    entry = json.loads(line)
    assert list(entry) == ["time", "level", "logger", "message", "blocks"]
    assert TIME.fullmatch(entry.pop("time"))
    assert entry == {"level": "INFO", "logger": "v4serve.worker", "message": "3 blocks", "blocks": 3}


def test_loggers_of_libraries_go_through_it() -> None:
    names = ["uvicorn.error", "uvicorn.access", "kopf.objects", "grpc", "aiohttp.server", "asyncio"]
    script = f"""
import aiohttp.web, grpc.aio, kopf, uvicorn
uvicorn.Config(None, log_config=None)
for name in {names}:
    logging.getLogger(name).warning("\\x1b[31mred\\x1b[0m\\nnext")
"""
    lines = said("json", script)
    entries = [json.loads(line) for line in lines]
    assert [entry["logger"] for entry in entries] == names
    assert {(entry["level"], entry["message"]) for entry in entries} == {("WARNING", "\x1b[31mred\x1b[0m\nnext")}
    assert not any("\x1b" in line for line in lines)


def test_an_exception_stays_within_its_line() -> None:
    script = """
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("a").exception("request %s failed", "r1")
warnings.warn("old")
raise ValueError("the end")
"""
    caught, warned, uncaught = map(json.loads, said("json", script, code=1))
    assert caught["message"] == "request r1 failed"
    assert caught["exception"].startswith("Traceback (most recent call last):\n")
    assert caught["exception"].endswith("ZeroDivisionError: division by zero")
    assert (warned["logger"], warned["level"]) == ("py.warnings", "WARNING")
    assert "UserWarning: old" in warned["message"]
    assert uncaught["level"] == "CRITICAL"
    assert uncaught["exception"].endswith("ValueError: the end")


@given(st.text(), st.dictionaries(st.text(), st.one_of(st.text(), st.floats(), st.integers(), st.none(), st.binary())))
def test_whatever_is_said_is_one_line_of_json(message: str, fields: dict[str, Any]) -> None:
    entry = formatted(message, fields)
    assert (entry["message"], entry["level"], entry["logger"]) == (message, "INFO", "v4serve.worker")
    assert set(fields) <= set(entry)


def test_fields_replace_nothing_of_the_line_itself() -> None:
    entry = formatted("true", {"message": "false", "level": "DEBUG", "request": "r1"}, stack_info="stack")
    assert (entry["message"], entry["level"], entry["request"], entry["stack"]) == ("true", "INFO", "r1", "stack")


def test_numbers_that_json_lacks_are_words() -> None:
    fields = {"ratio": float("inf"), "nested": {"bad": [float("nan")]}, "fine": 0.5}
    entry = formatted("x", fields)
    assert (entry["ratio"], entry["nested"], entry["fine"]) == ("Infinity", {"bad": ["NaN"]}, 0.5)


def test_lines_of_other_processes_get_their_name() -> None:
    line = '{"time": "t", "level": "INFO", "logger": "a", "message": "m", "request": "r"}'
    assert json.loads(relayed("prefill-0", line)) == {**json.loads(line), "process": "prefill-0"}


@pytest.mark.parametrize("text", ["E0000 00:00:17 chttp2: ping", "17", "[1]", "", "[" * 60_000])
def test_text_of_other_processes_becomes_a_message(text: str) -> None:
    entry = json.loads(relayed("router", text))
    assert TIME.fullmatch(entry.pop("time"))
    assert entry == {"level": "INFO", "logger": "router", "message": text, "process": "router"}
