"""The caches keep the newest state, in whatever order states arrive."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from v4_core.kubernetes import DEPLOYMENT_LABEL
from v4_operator.kube.cache import Children, Parents, compact, newer
from v4_operator.observed.objects import Key

D = Key("n", "d")


def obj(name: str = "a", version: int = 1, *, kind: str = "Service", owner: str = "d", **metadata: Any) -> Any:
    labels = {DEPLOYMENT_LABEL: owner} if owner else {}
    full = {"name": name, "namespace": "n", "uid": f"uid-{name}", "resourceVersion": str(version), "labels": labels}
    return {"kind": kind, "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z", **full, **metadata}}


class Changes(Children):
    """The cache of children, and the keys that changed since the last check."""

    def __init__(self) -> None:
        self.changed_keys: list[Key] = []
        super().__init__(self.changed_keys.append)

    def since(self) -> set[Key]:
        keys = set(self.changed_keys)
        self.changed_keys.clear()
        return keys


def test_children_are_found_by_name_and_by_owner() -> None:
    children = Changes()
    children.put(obj("a"))
    assert children.since() == {D}
    children.put(obj("b", owner=""))
    assert children.since() == set()
    children.put(obj("c", owner="e"))
    assert children.since() == {Key("n", "e")}
    assert children.get("Service", "n", "b") == obj("b", owner="")
    assert children.get("Service", "m", "b") is None
    assert children.of(D, "uid") == [obj("a")]
    children.remove(obj("a"))
    assert children.since() == {D}
    assert children.of(D, "uid") == []
    children.remove(obj("a"))
    assert children.since() == set()


def test_a_child_that_changes_owner_concerns_both() -> None:
    children = Changes()
    children.put(obj("a"))
    children.put(obj("a", 2, owner="e"))
    assert children.since() == {D, Key("n", "e")}
    assert children.of(D, "uid") == []


def test_older_versions_and_deletions_of_former_objects_change_nothing() -> None:
    children = Changes()
    children.put(obj("a", 5))
    children.since()
    children.put(obj("a", 4))
    children.put(obj("a", 5))
    children.remove(obj("a", 9, uid="former"))
    assert children.since() == set()
    assert children.get("Service", "n", "a") == obj("a", 5)


def test_a_recreated_object_replaces_the_former_one_but_not_vice_versa() -> None:
    children = Changes()
    children.put(obj("a", 9))
    children.since()
    again = obj("a", 10, uid="new", creationTimestamp="2026-01-02T00:00:00Z")
    children.put(again)
    assert children.since() == {D}
    children.put(obj("a", 9))
    assert children.since() == set()
    assert children.get("Service", "n", "a") == again


def test_children_of_a_former_v4deployment_of_the_name_are_left_out() -> None:
    children = Changes()
    for uid in ("1", "2"):
        owner = {"kind": "V4Deployment", "name": "d", "uid": uid, "controller": True}
        children.put(obj(f"of-{uid}", ownerReferences=[owner]))
    children.put(obj("pod", ownerReferences=[{"kind": "ReplicaSet", "name": "r", "uid": "3", "controller": True}]))
    assert [child["metadata"]["name"] for child in children.of(D, "2")] == ["of-2", "pod"]


def test_a_list_replaces_its_kind_and_namespace_but_not_what_is_newer() -> None:
    children = Changes()
    children.put(obj("gone", 3, owner="gone"))
    children.put(obj("kept", 3))
    children.put(obj("newer", 21, owner="newer"))
    children.put(obj("other", 3, kind="Pod", owner="pod"))
    children.put(obj("elsewhere", 3, owner="x", namespace="m"))
    children.since()
    children.replace("Service", "n", "20", [obj("kept", 3), obj("added", 7, owner="added")])
    assert children.since() == {Key("n", "gone"), Key("n", "added")}
    names = [("Service", "n", "kept"), ("Service", "n", "newer"), ("Pod", "n", "other"), ("Service", "m", "elsewhere")]
    assert all(children.get(*name) for name in names)
    assert children.get("Service", "n", "gone") is None
    children.replace("Service", "", "30", [])
    assert children.since() == {D, Key("m", "x"), Key("n", "newer"), Key("n", "added")}


def test_a_note_lasts_until_its_object_changes() -> None:
    children = Changes()
    children.note("Service", "n", "a", "of what is not there")
    children.put(obj("a"))
    assert children.noted("Service", "n", "a") == ""
    children.note("Service", "n", "a", "fine")
    children.put(obj("a", 1))
    assert children.noted("Service", "n", "a") == "fine"
    children.put(obj("a", 2))
    assert children.noted("Service", "n", "a") == ""


events = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["", "d", "e"]), st.booleans()), max_size=20)


@given(events, st.randoms(use_true_random=False))
def test_the_newest_version_stays_whatever_arrives_twice_or_late(
    history: list[tuple[str, str, bool]], random: Any
) -> None:
    """A watch delivers all versions in order; answers to writes and lists may deliver some of them earlier."""
    versions = [obj(name, i + 1, owner=owner) for i, (name, owner, _) in enumerate(history)]
    deliveries = [(i, version) for i, version in enumerate(versions)]
    early = [
        (random.randrange(i + 1), version)
        for i, (version, (*_, early)) in enumerate(zip(versions, history, strict=True))
        if early
    ]
    children = Changes()
    for _, version in sorted([*early, *deliveries], key=lambda pair: pair[0]):
        children.put(version)
    newest = {version["metadata"]["name"]: version for version in versions}
    for name, version in newest.items():
        assert children.get("Service", "n", name) == version
    for owner in "de":
        found = {child["metadata"]["name"] for child in children.of(Key("n", owner), "uid")}
        assert found == {n for n, v in newest.items() if v["metadata"]["labels"].get(DEPLOYMENT_LABEL) == owner}


def test_an_answer_after_the_event_of_a_deletion_restores_nothing() -> None:
    children, parents = Changes(), Parents()
    children.remove(obj("a", 12))
    children.put(obj("a", 11))
    assert children.get("Service", "n", "a") is None
    parents.put(obj("d", 10))
    assert parents.remove(obj("d", 12))
    assert not parents.put(obj("d", 11))
    assert parents.all() == []
    parents.put(obj("d", 13, uid="new"))
    assert parents.all() == [D], "another one of the name"


def test_an_object_that_gets_its_label_back_is_known_again() -> None:
    children = Changes()
    children.put(obj("a", 10))
    children.remove(obj("a", 11))
    children.put(obj("a", 12))
    assert children.get("Service", "n", "a") == obj("a", 12)


def test_an_object_that_is_being_deleted_may_be_put_again() -> None:
    children = Changes()
    children.put(obj("a", 10))
    children.since()
    children.forget(obj("a", 10))
    assert children.since() == {D}
    leaving = obj("a", 11, deletionTimestamp="2026-01-01T00:00:00Z")
    children.put(leaving)
    assert children.get("Service", "n", "a") == leaving


def test_neither_managed_fields_nor_secrets_are_kept() -> None:
    secret = obj(kind="Secret", managedFields=[{"manager": "m"}]) | {"data": {"token": "c2VjcmV0"}, "type": "Opaque"}
    assert compact(secret) == obj(kind="Secret") | {"type": "Opaque"}
    assert compact(obj(kind="ConfigMap") | {"data": {"a": "b"}})["data"] == {"a": "b"}
    assert "managedFields" in secret["metadata"], "the object of the caller is left alone"


@pytest.mark.parametrize(
    ("version", "than", "expected"), [("10", "9", True), ("9", "10", False), ("9", "9", False), ("a", "b", True)]
)
def test_newer(version: str, than: str, expected: bool) -> None:
    assert newer(version, than) is expected


def test_parents() -> None:
    parents = Parents()
    assert parents.put(obj("d", 1))
    assert not parents.put(obj("d", 1)), "an answer that a watch repeats"
    assert parents.put(obj("d", 2))
    assert not parents.remove(obj("d", 3, uid="former"))
    assert parents.all() == [D]
    again = obj("d", 5, uid="new", creationTimestamp="2026-01-02T00:00:00Z")
    assert parents.put(again)
    assert not parents.put(obj("d", 4)), "the former one, late"
    assert parents.get(D) == again
    assert parents.remove(again)
    assert parents.get(D) is None


def test_parents_whose_deletion_was_missed_are_dropped_and_new_ones_stay() -> None:
    parents = Parents()
    parents.put(obj("d"))
    parents.put(obj("gone"))
    before = parents.all()
    parents.put(obj("late"))
    parents.keep_only(before, {"uid-d"})
    assert parents.all() == [D, Key("n", "late")]
