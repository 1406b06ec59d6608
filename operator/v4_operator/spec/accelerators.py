"""Hardware facts about each type of accelerator. Does not say which of them the engine supports.

`fp8` is OCP e4m3, the format in which the model's caches are exchanged. Ada, Hopper, Blackwell and CDNA4 compute in it;
Ampere and CDNA3 do not (CDNA3 has only the FNUZ variant). `fp4` is e2m1 with one scale per 32 values, on Blackwell and
CDNA4.
"""

from dataclasses import dataclass
from typing import Literal

CPU = "cpu"  # the type of a pool without devices

_MIB = 1 << 20
_PLAIN = frozenset({"bf16", "fp32", "fp64"})
_FP8 = _PLAIN | {"fp8"}
_FP4 = _FP8 | {"fp4"}


@dataclass(frozen=True)
class AcceleratorType:
    """One type of accelerator."""

    memory_bytes: int  # of one device, as its driver reports; 0 for cpu, whose memory is the container's
    resource: str  # the extended resource of its device plugin; empty for cpu
    formats: frozenset[str]  # storage formats in which it can compute
    link: Literal["", "nvlink", "xgmi"]  # interconnect between the devices of a node; empty = PCIe only


def _nvidia(mib: int, formats: frozenset[str], link: Literal["", "nvlink"] = "nvlink") -> AcceleratorType:
    return AcceleratorType(mib * _MIB, "nvidia.com/gpu", formats, link)


def _amd(gib: int, formats: frozenset[str]) -> AcceleratorType:
    return AcceleratorType(gib * 1024 * _MIB, "amd.com/gpu", formats, "xgmi")


ACCELERATORS = {
    CPU: AcceleratorType(0, "", _PLAIN, ""),
    "l4": _nvidia(23_034, _FP8, ""),
    "l40s": _nvidia(46_068, _FP8, ""),
    "a100-40gb": _nvidia(40_960, _PLAIN),
    "a100-80gb": _nvidia(81_920, _PLAIN),
    "h20": _nvidia(97_871, _FP8),
    "h100": _nvidia(81_559, _FP8),
    "h200": _nvidia(143_771, _FP8),
    "b200": _nvidia(183_359, _FP4),
    "b300": _nvidia(275_040, _FP4),
    "gb200": _nvidia(189_471, _FP4),
    "gb300": _nvidia(284_208, _FP4),
    "mi300x": _amd(192, _PLAIN),
    "mi325x": _amd(256, _PLAIN),
    "mi355x": _amd(288, _FP4),
}
