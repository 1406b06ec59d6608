"""Benchmarks. Each figure is measured together with a yardstick, in the same run."""
