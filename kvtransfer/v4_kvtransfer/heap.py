"""How this process's C heap treats large buffers. Knows nothing of what they hold."""

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGE = 32 << 20  # the largest mmap threshold that every glibc takes
_KEPT = 512 << 20


def keep_large_buffers() -> bool:
    """Let glibc reuse freed buffers of up to 32 MiB instead of returning them to the kernel; False without glibc.

    gRPC allocates several buffers of a frame's size per frame. By default each is mapped, faulted in page by page
    and unmapped again: measured, 1.5 GB/s and 0.60 CPU seconds per GB at the receiver, against 2.5 and 0.34 with
    this. Call once, when the process starts.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    accepted = libc.mallopt(_M_MMAP_THRESHOLD, _LARGE), libc.mallopt(_M_TRIM_THRESHOLD, _KEPT)
    return all(accepted)
