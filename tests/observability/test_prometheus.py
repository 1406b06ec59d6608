"""The Prometheus that other tests ask, asked about a process of this project's own making."""

from pathlib import Path

import prometheus_client
import pytest
import yaml
from prometheus_client import CollectorRegistry, Counter

from tests.observability.prometheus import Prometheus, PrometheusTools, QueryFailed, Target


def test_it_scrapes_and_follows_rules_and_ends(prometheus_tools: PrometheusTools, tmp_path: Path) -> None:
    registry = CollectorRegistry()
    counter = Counter("seen", "Things seen", ["role"], registry=registry)
    counter.labels("own").inc(3)
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    rules = tmp_path / "rules.yaml"
    rule = {"record": "renamed:seen_total", "expr": 'label_replace(seen_total, "more", "$1", "role", "(.*)")'}
    rules.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [rule]}]}))
    address = f"127.0.0.1:{server.server_address[1]}"
    targets = [Target(address, {"pod": "a", "role": "prefill"}), Target(address, {"pod": "b"})]
    try:
        with Prometheus(prometheus_tools, tmp_path / "p", targets, rules=[rules], interval=0.2) as prometheus:
            prometheus.wait_until_scraped()
            found = prometheus.wait_for("renamed:seen_total", lambda samples: len(samples) == 2)
            assert sorted((one.labels["pod"], one.labels["more"]) for one in found) == [("a", "own"), ("b", "own")]
            [series] = prometheus.query_range("sum(seen_total)", found[0].time, found[0].time + 1, 1)[:1]
            assert series[0].value == 6
            assert prometheus.query("1 + 1")[0].value == 2
            with pytest.raises(QueryFailed, match="parse error"):
                prometheus.query("sum(")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    with pytest.raises(OSError, match="refused"):
        prometheus.query("up")
