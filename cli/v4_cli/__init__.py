"""The `v4serve` command."""
