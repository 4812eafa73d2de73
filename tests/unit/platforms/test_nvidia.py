"""NVIDIA GPUs: NVML access, CUDA's rules of visibility, and the real pynvml with a fake driver library."""

import json

import pytest

from pytest_accel.platforms.catalogue import select_visible
from pytest_accel.platforms.nvidia import Refused, opened
from tests.support.fake_nvml import FakeGpu

pytest_plugins = ("tests.support.fake_nvml",)

UUIDS = ["GPU-8932f937-d72c", "GPU-8932aaaa-0000", "GPU-1111", "GPU-2222"]
DETECT = """
import json
from dataclasses import asdict
from pytest_accel.platforms.machine import detect
print(json.dumps(asdict(detect())))
"""


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("-1", []),
        ("0,2", [0, 2]),
        (" 3 , 0 ", [3, 0]),
        ("0,2,-1,1", [0, 2]),  # the example of the CUDA programming guide
        ("1gpu2,2ampere", [1, 2]),  # this and the next as torch.cuda's tests have them
        ("0, 1, 2, 1", []),
        ("2, +3, -0", [2, 3, 0]),
        ("GPU-2222,GPU-1111", [3, 2]),
        ("GPU-8932f", [0]),
        ("GPU-8932", []),  # fits two: invalid
        ("GPU-1111,GPU-9999,GPU-2222", [2]),
    ],
)
def test_visible_devices_as_cuda_reads_them(spec, expected):
    assert select_visible(spec, UUIDS) == expected


# --- the real pynvml --------------------------------------------------------------------------------

A100S = [
    FakeGpu(name="NVIDIA A100-SXM4-40GB", uuid=f"GPU-{letter * 8}-0000", memory_mib=40960)
    for letter in "abcd"
]


@pytest.fixture
def detect(fake_nvml):
    def run(gpus, **variables):
        return json.loads(fake_nvml.run(DETECT, gpus, **variables))

    return run


def uuids(machine):
    return [device["uuid"][4] for device in machine["devices"]]


def test_four_a100(detect):
    machine = detect(A100S)
    assert uuids(machine) == ["a", "b", "c", "d"]
    assert machine["problems"] == []
    first = machine["devices"][0]
    assert (first["key"], first["variant"]["key"]) == ("a100", "sxm4-40gb")
    assert first["memory_bytes"] == 40960 << 20


def test_cuda_visible_devices_through_pynvml(detect):
    assert uuids(detect(A100S, CUDA_VISIBLE_DEVICES="GPU-cccc,GPU-aaaa")) == ["c", "a"]


def test_hidden_gpus_are_none_and_the_reason_is_told(detect):
    machine = detect(A100S, CUDA_VISIBLE_DEVICES="-1")
    assert machine["devices"] == []
    assert machine["problems"] == ["CUDA_VISIBLE_DEVICES='-1' leaves none of 4 x NVIDIA A100-SXM4-40GB"]


def test_gpu_in_mig_mode_is_not_measured_and_hides_the_others(detect):
    gpus = [FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b", mig=1)]
    machine = detect(gpus)
    assert machine["devices"] == []
    assert "MIG mode" in machine["problems"][0]
    assert uuids(detect(gpus, CUDA_VISIBLE_DEVICES="0")) == ["a"]


def test_a_lost_gpu_does_not_hide_the_others(detect):
    machine = detect([FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b", lost=1), FakeGpu(uuid="GPU-c")])
    assert uuids(machine) == ["a", "c"]
    assert len(machine["problems"]) == 1
    assert machine["problems"][0].startswith("NVML: GPU 1: ")


def test_a_driver_that_does_not_start_is_a_problem_not_a_crash(detect):
    machine = detect([FakeGpu()], init_error=9)
    assert machine["devices"] == []
    assert machine["problems"] == ["NVML: Driver Not Loaded"]


# --- access to NVML ---------------------------------------------------------------------------------


def test_answers_and_refusals(driver):
    driver(nvmlName="H200", nvmlOdd=OSError("Unknown Error"))
    with opened() as nvml:
        assert nvml.problem == ""
        assert nvml.ask("nvmlName") == "H200"
        assert nvml.ask("nvmlOdd") is None
        assert nvml.attempt("nvmlOdd") == (None, "Unknown Error")
        assert nvml.ask("nvmlOfTheFuture") is None
        assert nvml.constant("NVML_OF_THE_FUTURE") is None
        with pytest.raises(Refused, match="Unknown Error"):
            nvml.demand("nvmlOdd")


def test_it_is_closed_even_after_an_error(driver):
    package = driver(nvmlShutdown=OSError())
    with pytest.raises(KeyError), opened():
        raise KeyError
    assert package.calls == ["nvmlInit", "nvmlShutdown"]
