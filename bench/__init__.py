"""The benchmark: our figures beside the bare engine's and the peers', taken in turn in one run.

`python -m bench` (or `make bench`) prints them. It measures and judges; it never fails for being slow.
"""
