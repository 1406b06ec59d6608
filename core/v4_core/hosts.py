"""What an address to listen on means for who can reach it. Opens no socket, resolves no name."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect; False for a name other than localhost, which may mean anything."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
