"""A cluster by hand. up: one that stays until down. shell: one for a shell, gone when the shell ends.

The first time everything is built, which takes minutes; `up` shows it. An `up` that was interrupted goes on in the
background: `up` again waits for it, or says again where the cluster is; `down` ends it at any time.
"""

import argparse
import os
import subprocess
import sys
from contextlib import closing

from tests.cluster import image
from tests.cluster.machine import standing
from tests.cluster.machine.errors import ClusterError, PartMissing
from tests.cluster.machine.local import LocalCluster


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster.machine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=["up", "down", "shell", "hold"], help="hold: what up starts")
    parser.add_argument("--image", action="store_true", help="with the project's image")
    arguments = parser.parse_args()
    try:
        if arguments.action == "up":
            _up(with_image=arguments.image)
        elif arguments.action == "down":
            standing.stop()
        elif arguments.action == "hold":
            standing.hold(lambda: _cluster(with_image=arguments.image))
        else:
            _shell(with_image=arguments.image)
    except ClusterError as error:
        sys.exit(str(error))


def _up(*, with_image: bool) -> None:
    command = [sys.executable, "-m", "tests.cluster.machine", "hold"]
    if not standing.start([*command, "--image"] if with_image else command):
        print("a cluster is up or being made already, with or without the image", file=sys.stderr)
    try:
        paths = standing.join(sys.stderr)
    except KeyboardInterrupt:
        sys.exit("\nit goes on in the background: `up` waits for it again, `down` ends it")
    print(f"export KUBECONFIG={paths['kubeconfig']} PATH={paths['tools']}:$PATH")


def _cluster(*, with_image: bool) -> LocalCluster:
    if not with_image:
        return LocalCluster()
    if reason := image.lacks():
        raise PartMissing(reason)
    return LocalCluster([image.build()])


def _shell(*, with_image: bool) -> None:
    with closing(_cluster(with_image=with_image)) as cluster:
        subprocess.run([os.environ.get("SHELL", "/bin/bash")], env=cluster.environment, check=False)


if __name__ == "__main__":
    main()
