"""A real Prometheus on this machine's loopback, and promtool. Knows no metric.

with Prometheus(tools, folder, [Target("127.0.0.1:9100", {"role": "router"})], rules=[RULES]) as prometheus:
    prometheus.wait_until_scraped()
    prometheus.query("up")
"""

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.machine.commands import run
from tests.cluster.machine.errors import ClusterError
from tests.cluster.machine.waiting import wait

Json = dict[str, Any]
Samples = list["Sample"]

_START_SECONDS = 60.0  # 1 s on an idle machine
_STOP_SECONDS = 20.0
_ANSWER_SECONDS = 30.0
_SCRAPE_SECONDS = 60.0


class QueryFailed(Exception):
    """Prometheus refused a query; the message is its own."""


@dataclass(frozen=True)
class Target:
    """What is scraped, and the labels that its samples get where they have none of that name themselves."""

    address: str  # host:port
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """One element of a query's answer; what a label is missing has "" in `labels.get`, as in PromQL."""

    labels: Mapping[str, str]  # with __name__ where the expression keeps it
    value: float
    time: float  # Unix seconds


@dataclass(frozen=True)
class PrometheusTools:
    """The folder with both binaries."""

    folder: Path

    def promtool(self, *args: str | Path) -> str:
        """Its standard output. Raises CommandFailed."""
        return run([self.folder / "promtool", *args])


class Prometheus:
    """One server, as a context manager: answers when entered, gone when left."""

    def __init__(
        self,
        tools: PrometheusTools,
        folder: Path,
        targets: Sequence[Target] = (),
        *,
        rules: Sequence[Path] = (),
        interval: float = 1.0,
        scrape_configs: Sequence[Json] = (),
    ) -> None:
        """Data and log go into the new folder `folder`; `interval` is that of scrapes and of rules, in seconds.

        `scrape_configs` are written into the configuration as they are, beside one for `targets`.
        """
        self.url = ""
        self._tools = tools
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        every = f"{round(interval * 1000)}ms"
        static = [{"targets": [one.address], "labels": dict(one.labels)} for one in targets]
        own = {"job_name": "v4serve", "honor_labels": True, "static_configs": static}
        self._configuration = {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": [str(path.resolve()) for path in rules],
            "scrape_configs": [*([own] if targets else []), *scrape_configs],
        }

    def __enter__(self) -> "Prometheus":
        self._folder.mkdir(parents=True)
        configuration, log = self._folder / "prometheus.yml", self._folder / "log"
        configuration.write_text(yaml.safe_dump(self._configuration))
        command: list[str | Path] = [self._tools.folder / "prometheus", f"--config.file={configuration}"]
        command += [f"--storage.tsdb.path={self._folder / 'data'}", "--web.listen-address=127.0.0.1:0"]
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            self.url = wait(lambda: _listening(log), _START_SECONDS, "Prometheus listens", self._check)
            wait(self._is_ready, _START_SECONDS, "Prometheus is ready", self._check)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, by its process id."""
        if self._process:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def query(self, expr: str, time: float | None = None) -> Samples:
        """An instant query, now or at a Unix time. Raises QueryFailed."""
        found = self._get("query", {"query": expr} | ({} if time is None else {"time": f"{time:.3f}"}))
        if found["resultType"] == "scalar":
            return [_sample({}, found["result"])]
        return [_sample(one["metric"], one["value"]) for one in found["result"]]

    def query_range(self, expr: str, start: float, end: float, step: float) -> list[Samples]:
        """A range query between two Unix times, one list a series; steps in seconds. Raises QueryFailed."""
        asked = {"query": expr, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        found = self._get("query_range", asked)["result"]
        return [[_sample(one["metric"], point) for point in one["values"]] for one in found]

    def wait_for(self, expr: str, holds: Callable[[Samples], bool] = bool, seconds: float = _SCRAPE_SECONDS) -> Samples:
        """The first answer of which `holds` says so: by default, one that has samples. Raises TimedOut."""

        def answer() -> Samples:
            found = self.query(expr)
            return found if holds(found) else []

        return wait(answer, seconds, f"{expr} holds", self._check)

    def wait_until_scraped(self, times: int = 2, seconds: float = _SCRAPE_SECONDS) -> None:
        """Until every target has answered so many times: rates need two. Raises TimedOut."""

        def scraped() -> bool:
            return 0 < len(self.targets()) == len(self.query(f"up and sum_over_time(up[5m]) >= {times}"))

        wait(scraped, seconds, f"every target was scraped {times} times", self._check)

    def targets(self) -> list[Json]:
        """What it scrapes: labels, health and lastError of each."""
        return list(self._get("targets", {"state": "active"})["activeTargets"])

    def alerts(self) -> list[Json]:
        """Alerts that are pending or firing."""
        return list(self._get("alerts", {})["alerts"])

    def promtool(self, *args: str | Path) -> str:
        """Its standard output. Raises CommandFailed."""
        return self._tools.promtool(*args)

    def _get(self, path: str, parameters: Mapping[str, str]) -> Json:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as response:
                return dict(json.load(response)["data"])
        except urllib.error.HTTPError as error:
            with error:
                raise QueryFailed(f"{parameters}: {error.read().decode()}") from error

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=_ANSWER_SECONDS) as response:
                return bool(response.status == 200)
        except urllib.error.HTTPError as error:  # 503 while it reads its data
            error.close()
            return False

    def _check(self) -> None:
        if self._process and self._process.poll() is not None:
            raise ClusterError(f"Prometheus has ended: {(self._folder / 'log').read_text()[-2000:]}")


def _listening(log: Path) -> str:
    """The URL that its log tells; empty until then."""
    found = re.search(r'msg="Listening on" address=(\S+)', log.read_text())
    return f"http://{found[1]}" if found else ""


def _sample(labels: Mapping[str, str], point: Sequence[Any]) -> Sample:
    return Sample(labels, float(point[1]), float(point[0]))
