"""Benchmarks: each figure with its baseline, measured in the same run. `masos bench NAME`, `masos bench all`."""
