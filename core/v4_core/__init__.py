"""Definitions that all parts of v4serve share: model config, cache geometry, block names, errors, worker protocol.

Nothing here imports torch or touches a device.
"""
