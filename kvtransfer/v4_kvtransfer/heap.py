"""Configures how this process's C heap treats large buffers. Does not know what they hold."""

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGE = 32 << 20  # the largest mmap threshold that every glibc takes
_KEPT = 512 << 20


def keep_large_buffers() -> bool:
    """Let glibc reuse freed buffers of up to 32 MiB instead of returning them to the kernel.

    Call it once at the start of the process. Returns False without glibc.

    gRPC allocates several buffers of a frame's size per frame. By default, glibc maps each of them, the kernel faults
    it in page by page, and glibc unmaps it again. Measured at the receiver: 1.5 GB/s and 0.60 CPU seconds per GB by
    default, 2.5 GB/s and 0.34 with this setting.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    accepted = libc.mallopt(_M_MMAP_THRESHOLD, _LARGE), libc.mallopt(_M_TRIM_THRESHOLD, _KEPT)
    return all(accepted)
