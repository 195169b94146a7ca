"""On PYTHONPATH, this gives every Python process the second device: workers are processes of their own."""

import os

from tests.second_device.device import register

register(int(os.environ["ADP_BENCH_TESTED_DEVICES"]))
