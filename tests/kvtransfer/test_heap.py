"""The heap setting takes effect where there is a glibc, and says so where there is none."""

import platform

from v4_kvtransfer.heap import keep_large_buffers


def test_it_says_whether_it_took_effect() -> None:
    assert keep_large_buffers() == (platform.libc_ver()[0] == "glibc")
