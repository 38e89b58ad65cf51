from __future__ import annotations

import sys
from pathlib import Path

import torch
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # so that every test finds reference.py and steps.py
torch.set_num_threads(1)
settings.register_profile(
    "house", deadline=None, derandomize=True, max_examples=25, suppress_health_check=list(HealthCheck)
)
settings.load_profile("house")
