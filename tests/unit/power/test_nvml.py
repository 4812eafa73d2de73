"""The energy and the power of GPUs, through the real pynvml and a driver without a GPU."""

import json

import pytest

from tests.support.fake_nvml import FakeGpu

pytest_plugins = ("tests.support.fake_nvml",)

MINE = FakeGpu(uuid="GPU-aaaaaaaa-0000-0000-0000-000000000001", energy_mj=123_456_789)
OTHER = FakeGpu(uuid="GPU-aaaaaaaa-0000-0000-0000-000000000002", energy_mj=5)


ASK = """
import json
from pytest_accel.power.nvml import NvmlSource
from pytest_accel.platforms.catalogue import DetectedDevice
devices = [DetectedDevice(vendor="nvidia", uuid=uuid, index=index) for index, uuid in enumerate({wanted!r})]
source = NvmlSource(devices)
readings = [getattr(source, name)() for name in {asked!r}]
rails = [[rail.name, rail.scope, rail.kind] for rail in source.rails]
print(json.dumps({{"rails": rails, "readings": readings, "problem": source.problem}}))
source.close()
source.close()
assert source.joules() == source.watts() == {{}}
"""


@pytest.fixture
def ask(fake_nvml):
    """What a source says of devices, by their UUIDs."""

    def answer(gpus, wanted, *asked, **options):
        code = ASK.format(wanted=wanted, asked=asked)
        return json.loads(fake_nvml.run(code, gpus, **options))

    return answer


@pytest.mark.parametrize(
    ("gpus", "options"),
    [
        ([OTHER], {}),
        ([FakeGpu(uuid=MINE.uuid, energy_mj=None)], {}),
        ([MINE], {"init_error": 9}),
    ],
    ids=["not there", "does not count", "no driver"],
)
def test_a_gpu_that_cannot_be_asked_has_no_energy_and_says_why(ask, gpus, options):
    out = ask(gpus, [MINE.uuid], "joules", **options)
    assert out["readings"] == [{}]
    assert out["problem"]


def test_rails_are_numbered_as_the_framework_counts_devices(ask):
    out = ask([OTHER, MINE], [MINE.uuid, OTHER.uuid], "joules")
    assert out["rails"] == [["gpu0", "device", "gpu"], ["gpu1", "device", "gpu"]]
    assert out["readings"] == [{"gpu0": 123_456.789, "gpu1": 0.005}]
    assert out["problem"] == ""


def test_instantaneous_power_is_preferred_to_the_average(ask):
    gpu = FakeGpu(uuid=MINE.uuid, power_instant_mw="680000|681000|690000", power_mw=75_000)
    out = ask([gpu], [MINE.uuid], "watts", "watts")
    assert out["readings"] == [{"gpu0": 680.0}, {"gpu0": 681.0}]


@pytest.mark.parametrize(
    ("instant", "average", "watts"),
    [(None, 75_000, {"gpu0": 75.0}), (0, 75_000, {"gpu0": 75.0}), (None, 4_294_967_295, {})],
)
def test_average_is_read_where_there_is_no_instantaneous_power(ask, instant, average, watts):
    gpu = FakeGpu(uuid=MINE.uuid, power_instant_mw=instant, power_mw=average)
    assert ask([gpu], [MINE.uuid], "watts")["readings"] == [watts]  # the last one is impossible


def test_an_unknown_gpu_among_others_stays_a_rail_so_that_no_sum_leaves_it_out(ask):
    out = ask([MINE], ["GPU-gone", MINE.uuid], "joules")
    assert len(out["rails"]) == 2
    assert list(out["readings"][0]) == ["gpu1"]
    assert out["problem"] == "gpu0: NVML does not know this device (GPU-gone)"


def test_a_gpu_that_is_lost_mid_run_is_missing_and_said_once(ask):
    gpus = [
        FakeGpu(uuid=MINE.uuid, energy_mj="1000|lost", power_mw="75000|lost"),
        FakeGpu(uuid=OTHER.uuid, energy_mj="1000|2000"),
    ]
    out = ask(gpus, [MINE.uuid, OTHER.uuid], *["joules", "watts"] * 3)
    assert out["readings"][:2] == [{"gpu0": 1.0, "gpu1": 1.0}, {"gpu0": 75.0, "gpu1": 75.0}]
    assert out["readings"][4:] == [{"gpu1": 2.0}, {"gpu1": 75.0}]
    assert out["problem"] == "gpu0: no energy counter (GPU is lost); gpu0: power cannot be read (GPU is lost)"
