"""On PYTHONPATH, this gives Python processes of ours the second device: workers are processes of their own."""

import os
import sys

STARTED_BY = ("benchmark", "spawn_main", "default_worker")
"""Our commands, worker processes and Ray's workers. Ray's own processes must not wait for PyTorch."""

if any(word in " ".join(sys.orig_argv) for word in STARTED_BY):
    from tests.second_device.device import register

    register(int(os.environ["ADP_BENCH_TESTED_DEVICES"]))
