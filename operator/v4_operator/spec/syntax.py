"""Rules of the API server and kubelet for names, keys, paths and references, each with a hint for users. Pure.

Sources: k8s.io/apimachinery/pkg/util/validation, and github.com/distribution/reference for images.
"""

import re
from typing import NamedTuple

_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME = r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_HOST = (
    r"([A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*|\[[0-9a-fA-F:]+\])(:[0-9]+)?"
)
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"


class Rule(NamedTuple):
    """A rule for names."""

    pattern: str  # must match the whole name
    longest: int  # characters
    hint: str

    def takes(self, name: str) -> bool:
        """Whether `name` obeys the rule."""
        return len(name) <= self.longest and re.fullmatch(self.pattern, name) is not None


SUBDOMAIN = Rule(
    _SUBDOMAIN, 253, "use at most 253 of a-z, 0-9, '-' and '.', starting and ending with a letter or digit"
)
LABEL = Rule(_LABEL, 63, "use at most 63 of a-z, 0-9 and '-', starting and ending with a letter or digit")
KEY = Rule(  # of a label, an annotation, a resource
    f"({_SUBDOMAIN}/)?{_NAME}",
    253 + 1 + 63,
    "use at most 63 letters, digits, '-', '_' and '.', optionally after a domain and '/'",
)
LABEL_VALUE = Rule(f"({_NAME})?", 63, "use at most 63 letters, digits, '-', '_' and '.'")
RELATIVE_PATH = Rule(
    r"(?s)(?!/)(?!(.*/)?\.\.(/.*)?$)[^\0]+", 4096, "write a relative path without '..' and without a leading '/'"
)
ABSOLUTE_PATH = Rule(r"(?s)/(?!(.*/)?\.\.(/.*)?$)[^\0]*", 4096, "write a path with a leading '/' and without '..'")
IMAGE = Rule(
    rf"({_HOST}/)?{_PART}(/{_PART})*(:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(@[a-z0-9]+([+._-][a-z0-9]+)*:[0-9a-fA-F]{{32,}})?",
    512,
    "write registry/name:tag, with a name of a-z and 0-9, without a scheme such as https://",
)
REPOSITORY = Rule(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*", 256, "write owner/name")
GIT_REVISION = Rule(
    r"(?![-./])(?!.*\.\.)(?!.*//)[^\s\0-\x1f\x7f~^:?*\[\\]+(?<![./])",
    256,
    "write a git branch, tag or commit",
)
_ENV = Rule(
    r"(?!\.$|\.\.)[-._A-Za-z][-._A-Za-z0-9]*",
    1 << 16,
    "use letters, digits, '_', '-' and '.', not starting with a digit",
)
_ENV_OF_1_32 = Rule(r"[ -<>-~]+", 1 << 16, "use printable ASCII characters other than '='")
# Resources of a container whose names have no domain prefix.
STANDARD_RESOURCE = Rule(
    r"cpu|memory|ephemeral-storage|hugepages-[0-9]+([KMGTPE]i)?",
    253,
    "use cpu, memory, ephemeral-storage, hugepages-SIZE or a name with a domain",
)


def env_rule(server: tuple[int, int]) -> Rule:
    """The rule for names of environment variables; since 1.32 the API server accepts almost any printable ASCII."""
    return _ENV_OF_1_32 if server >= (1, 32) else _ENV
