"""What every part of v4serve agrees on: model config, cache geometry, block names, errors, worker protocol.

Nothing here imports torch, opens a socket or touches a device.
"""
