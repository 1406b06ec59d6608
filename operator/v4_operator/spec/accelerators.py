"""What is known of each kind of device that workers may compute on. Facts of hardware, not of what the engine can do.

`fp8` is OCP e4m3, in which the model's caches are exchanged: Ada, Hopper, Blackwell and CDNA4 compute it, Ampere and
CDNA3 do not (CDNA3 has the FNUZ variant only). `fp4` is e2m1 with a scale per 32 values: Blackwell and CDNA4.
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
    """One kind of device."""

    memory_bytes: int  # of one device, as its driver reports; 0 for cpu, whose memory is the container's
    resource: str  # extended resource that its device plugin offers; empty for cpu
    formats: frozenset[str]  # storage formats that it computes with
    link: Literal["", "nvlink", "xgmi"]  # between devices of one node; empty = PCIe only


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
