"""Tells which addresses only this machine can reach. Opens no socket and resolves no name."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the address; False for host names other than localhost."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
