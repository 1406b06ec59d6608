"""Pods as targets for the shipped scrape configuration, without Prometheus' own discovery, which Debian's lacks.

What `role: pod` would find is written into a file instead: one target for each container port, with the same meta
labels. All else of the configuration stays as it is shipped.
"""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

CONFIGURATION = Path(__file__).parents[2] / "charts" / "v4serve" / "files" / "prometheus.yaml"

Json = dict[str, Any]
Reach = Callable[[Json, int], tuple[str, str]]  # pod, port -> host:port and path by which it is reached


def rule_files() -> list[Path]:
    """Those that the configuration names."""
    return [CONFIGURATION.parent / name for name in _read()["rule_files"]]


def scrape_configs(targets: Path) -> list[Json]:
    """The shipped ones for the pods of a file that `write_targets` writes, read again whenever it is."""
    configs: list[Json] = _read()["scrape_configs"]
    for config in configs:
        assert config.pop("kubernetes_sd_configs") == [{"role": "pod"}]
        config["file_sd_configs"] = [{"files": [str(targets)]}]
    return configs


def write_targets(targets: Path, pods: Iterable[Json], reach: Reach) -> None:
    """Those that are to be scraped from now on."""
    fresh = targets.with_suffix(".new")
    fresh.write_text(json.dumps([group for pod in pods for group in _groups(pod, reach)]))
    fresh.rename(targets)  # it reads the file at any moment


def _read() -> Json:
    return dict(yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8")))


def _groups(pod: Json, reach: Reach) -> Iterable[Json]:
    metadata = pod["metadata"]
    meta = {"namespace": metadata["namespace"], "pod_name": metadata["name"], "pod_phase": pod["status"]["phase"]}
    meta |= {f"pod_label_{_name(label)}": value for label, value in metadata["labels"].items()}
    for container in pod["spec"]["containers"]:
        for port in container.get("ports", ()):
            address, path = reach(pod, port["containerPort"])
            of_port = {**meta, "pod_container_port_name": port["name"]}
            labels = {f"__meta_kubernetes_{key}": value for key, value in of_port.items()}
            yield {"targets": [address], "labels": {**labels, "__metrics_path__": path}}


def _name(label: str) -> str:
    """As Prometheus writes a label's name."""
    return re.sub(r"[^A-Za-z0-9_]", "_", label)
