"""The time from `kubectl apply` to Ready on a local Kubernetes cluster: `python -m bench.ready [--times 5] [--json]`.

The yardstick, measured alternately, is the time from applying the same objects by hand until a router is ready. Both
end when a token has gone through prefill, transfer and decode.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import closing

from tests.cluster import image
from tests.cluster.installed import CHILDREN, NAMESPACE, Installed, example
from tests.cluster.machine import build
from tests.cluster.machine.errors import PartMissing
from tests.cluster.machine.local import LocalCluster

from bench.plain import Object, plain

NAME = "measured"
SELECTOR = ("--selector", f"v4serve.dev/deployment={NAME}")
SECONDS = 240


def by_operator(release: Installed) -> tuple[float, list[Object]]:
    """Return the seconds from apply to Ready, and the objects that the operator created."""
    began = time.perf_counter()
    release.apply(example(), NAME)
    release.kubectl("wait", f"v4d/{NAME}", "--for=condition=Ready", f"--timeout={SECONDS}s")
    lasted = time.perf_counter() - began
    made = [plain(child, NAMESPACE) for child in release.get(CHILDREN, *SELECTOR)["items"]]
    release.kubectl("delete", "v4d", NAME)
    wait_until_deleted(release)
    return lasted, made


def by_hand(release: Installed, children: Sequence[Object]) -> float:
    """Return the seconds from applying the objects until a router is ready."""
    began = time.perf_counter()
    release.kubectl("apply", "--filename=-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": children}))
    release.kubectl("wait", f"deployment/{NAME}-router", "--for=condition=Available", f"--timeout={SECONDS}s")
    lasted = time.perf_counter() - began
    release.kubectl("delete", CHILDREN, *SELECTOR)
    wait_until_deleted(release)
    return lasted


def wait_until_deleted(release: Installed) -> None:
    """Wait until all objects are deleted, including pods that drain."""
    release.cluster.wait(lambda: not release.children(NAME), SECONDS, "all objects are deleted")


def run(times: int) -> dict[str, float]:
    """Return medians in seconds."""
    with closing(LocalCluster([image.build()])) as cluster:
        release = Installed(cluster)
        release.install()
        pairs = [(lasted, by_hand(release, made)) for lasted, made in (by_operator(release) for _ in range(times))]
    operator, hand = (statistics.median(column) for column in zip(*pairs, strict=True))
    first = round(release.ready_seconds, 1)
    return {"first_demo_ready": first, "ready": round(operator, 1), "by_hand": round(hand, 1)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        build.parts()
        figures = run(arguments.times)
    except PartMissing as error:
        print(f"not measured: {error}")
        return
    if arguments.json:
        print(json.dumps(figures))
        return
    print("  ".join(f"{key} {value} s" for key, value in figures.items()))


if __name__ == "__main__":
    main()
