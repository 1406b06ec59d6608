import json
import struct

import pytest

from v4_core.profiles import PROFILES
from v4_core.weight_sizes import weight_bytes
from v4_models import DEMO_MODEL


def test_the_demo_model_to_the_byte() -> None:
    with (DEMO_MODEL / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        tensors = json.loads(file.read(length))
    stored = {name: t["data_offsets"][1] - t["data_offsets"][0] for name, t in tensors.items() if name[:2] != "__"}
    sizes = weight_bytes(PROFILES["demo"])
    assert sizes.total == sum(stored.values())
    assert sizes.experts == sum(size for name, size in stored.items() if ".experts." in name)


@pytest.mark.parametrize(("profile", "gib"), [("flash", 149), ("pro", 805)])
def test_the_published_checkpoints(profile: str, gib: int) -> None:
    assert round(weight_bytes(PROFILES[profile]).total / 2**30) == gib
