"""Names at the limits of what Kubernetes takes."""

import pytest

from v4_operator.spec.syntax import (
    ABSOLUTE_PATH,
    GIT_REVISION,
    IMAGE,
    KEY,
    LABEL,
    LABEL_VALUE,
    RELATIVE_PATH,
    REPOSITORY,
    STANDARD_RESOURCE,
    SUBDOMAIN,
    Rule,
    env_rule,
)

OLD_ENV, NEW_ENV = env_rule((1, 31)), env_rule((1, 32))
DIGEST = f"sha256:{'0' * 64}"

TAKEN: list[tuple[Rule, list[str]]] = [
    (SUBDOMAIN, ["a", "a.b", "a-b.c-d", "0", "a" * 253]),
    (LABEL, ["a", "a-b", "0", "a" * 63]),
    (KEY, ["a", "A_b.c-d", "example.com/a", "a" * 63, f"{'a' * 253}/b"]),
    (LABEL_VALUE, ["", "a", "A_b.c-d", "0", "a" * 63]),
    (RELATIVE_PATH, ["a", "a/b/", "a//b", ".", "./a", "...", "..a", "a..", ".a/b", "a b"]),
    (ABSOLUTE_PATH, ["/", "/a", "/a/...", "/..a"]),
    (
        IMAGE,
        ["a", "a:1", "a/b_c/d--e:v1.2", f"a@{DIGEST}", f"r.example.com:5000/a/b:t@{DIGEST}", "[::1]:5/a", "Host/a"],
    ),
    (REPOSITORY, ["deepseek-ai/DeepSeek-V4", "a/b.c"]),
    (GIT_REVISION, ["main", "refs/pr/1", "v1.0", "feature/a_b-c", "0a1b2c", "ünïcode"]),
    (OLD_ENV, ["A", "_a", ".a", "-a", "a.b-c_D0"]),
    (NEW_ENV, ["A", "0", "a b", "..", "!~"]),
    (STANDARD_RESOURCE, ["cpu", "memory", "ephemeral-storage", "hugepages-2Mi"]),
]
REFUSED: list[tuple[Rule, list[str]]] = [
    (SUBDOMAIN, ["", "A", "a_b", "a b", "-a", "a-", "a.", ".a", "a..b", "a.-b", "a" * 254, "a\n"]),
    (LABEL, ["", "a.b", "A", "-a", "a-", "a" * 64, "a\n"]),
    (KEY, ["", "/a", "a/", "a/b/c", "-a", "a-", "a b", "A.com/a", "a" * 64, "a\n"]),
    (LABEL_VALUE, ["-a", "a-", "a b", "a/b", "a" * 64, "a\n"]),
    (RELATIVE_PATH, ["", "/a", "..", "../a", "a/..", "a/../b", "a\n/../b", "a\0"]),
    (ABSOLUTE_PATH, ["", "a", "/..", "/a/../b", "/a/..", "/a\n/../b"]),
    (IMAGE, ["", "A", "a b", " a", "https://r/a", "a:", "a:-", "a/", "/a", "a//b", "a@b", "a@sha256:0", "a\n"]),
    (REPOSITORY, ["a", "a/b/c", "../b", "a/..", "-a/b", "a b/c"]),
    (GIT_REVISION, ["", ".", "..", "a..b", "a//b", "-a", "/a", "a/", "a.", "a b", "a:b", "a\n", "a*"]),
    (OLD_ENV, ["", "0", "a b", "a=b", ".", "..", "..a", "ä", "a\n"]),
    (NEW_ENV, ["", "a=b", "ä", "a\n"]),
    (STANDARD_RESOURCE, ["", "cpus", "gpu", "hugepages-", "hugepages-2"[:-1]]),
]


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, names in TAKEN for name in names])
def test_taken(rule: Rule, name: str) -> None:
    assert rule.takes(name)


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, names in REFUSED for name in names])
def test_refused(rule: Rule, name: str) -> None:
    assert not rule.takes(name)
