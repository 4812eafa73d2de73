"""What this site has that no catalogue knows, and what a node must be before it is worth measuring."""

import json
import subprocess
import sys

import pytest


def pytest_accel_platforms(config):
    """Our A40 nodes, four GPUs each: `@pytest.mark.a40`, `-m a40x4` and `baselines/a40` work from here on."""
    return {
        "a40": {
            "title": "A40",
            "vendor": "nvidia",
            "patterns": ["NVIDIA A40"],
            "memory_gb": 48,
            "shapes": ["x4"],
            "peaks_tflops": {"fp32": 37.4, "tf32": 74.8, "bf16": 149.7, "fp16": 149.7},
            "source": "NVIDIA A40 data sheet; dense halves of its sparse rates",
        }
    }


@pytest.fixture(scope="session", autouse=True)
def fit_devices():
    """No figure from a GPU that throttles, is in use or has memory errors: `pytest-accel doctor` looks first."""
    doctor = [sys.executable, "-m", "pytest_accel", "doctor", "--json"]
    shown = subprocess.run(doctor, check=False, capture_output=True, text=True).stdout
    findings = json.loads(shown)["findings"]
    problems = [each for each in findings if each["group"] == "devices" and each["level"] == "problem"]
    assert not problems, "\n".join(
        f"{each['subject']}: {each['text']} -> {each['remedy']}" for each in problems
    )
