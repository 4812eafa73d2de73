"""Validity of a window: each disturbance alone, at its threshold and just below it."""

from dataclasses import replace

import pytest

from pytest_accel.measure.validity import BUSY_SHARE, DeviceReadings, DeviceSample, ForeignProcess, assess

GIB = 1 << 30


def sampled(*reasons, **readings):
    """One sample a tenth of a second, each with its reasons."""
    return tuple(
        DeviceSample(
            at_s=0.05 + number / 10,
            event_reasons=each,
            **{"sm_mhz": 1515, "memory_mhz": 3201, "temperature_c": 62, **readings},
        )
        for number, each in enumerate(reasons)
    )


def share_of(bits, share, *, count=100):
    busy = round(share * count)
    return [bits] * busy + [0] * (count - busy)


WELL = DeviceReadings(
    begin_s=0.0,
    end_s=10.0,
    # An H200 under matrix products: always at the power cap of its default limit.
    samples=sampled(*[0x4] * 100),
    power_limit_w=700.0,
    power_limit_default_w=700.0,
    ecc_uncorrected_before=0,
    ecc_uncorrected_after=0,
)


def found(**changes):
    return assess(replace(WELL, **changes))


def with_reasons(*reasons):
    return found(samples=sampled(*reasons), end_s=len(reasons) / 10)


def test_power_cap_at_the_default_limit_is_valid():
    validity = assess(WELL)
    assert validity.invalid == validity.notes == ()
    assert validity.figures == {
        "sm_clock_mhz": 1515.0,
        "memory_clock_mhz": 3201.0,
        "temperature_c": 62.0,
        "power_capped_share": 1.0,
        "throttled_share": 0.0,
    }


@pytest.mark.parametrize(
    ("clocks", "reasons", "most", "locked"),
    [
        ([1200] * 40, 0x0, 1980, 1200.0),  # `nvidia-smi -lgc 1200`
        ([1200, 1185] * 20, 0x2, 1980, 1192.5),
        ([1200] * 40, 0x4, 1980, None),  # the power limit
        ([1200] * 40, 0x40, 1980, None),  # heat
        ([1200] * 20 + [1500] * 20, 0x0, 1980, None),
        ([1965] * 40, 0x0, 1980, None),
        ([1200] * 40, 0x0, None, None),
        ([1200] * 4, 0x0, 1980, None),  # too few samples
        ([1200] * 40, None, 1980, None),  # reasons are not known
    ],
)
def test_clock_that_never_moves_below_the_highest_without_a_reason_is_locked(clocks, reasons, most, locked):
    samples = tuple(
        replace(sample, sm_mhz=clock)
        for sample, clock in zip(sampled(*[reasons] * len(clocks)), clocks, strict=True)
    )
    assert found(samples=samples, sm_mhz_max=most).figures.get("locked_clock_mhz") == locked


class TestThrottling:
    @pytest.mark.parametrize(
        ("bits", "name"),
        [
            (0x8, "HW slowdown"),
            (0x20, "SW thermal"),
            (0x40, "HW thermal"),
            (0x80, "power brake"),
            (0x8 | 0x40, "HW thermal"),  # the cause replaces the slowdown
            (0x8 | 0x20, "HW slowdown and SW thermal"),  # software's does not cause the hardware's
        ],
    )
    def test_throttling_invalidates_from_five_percent_on(self, bits, name):
        validity = with_reasons(*share_of(bits | 0x4, 0.34))
        assert validity.invalid == (f"throttled ({name}, 34 % of the window)",)
        assert validity.notes == ()
        assert validity.figures["throttled_share"] == pytest.approx(0.34)
        assert with_reasons(*share_of(bits, 0.05)).invalid == (f"throttled ({name}, 5 % of the window)",)
        below = with_reasons(*share_of(bits, 0.04))
        assert (below.invalid, below.notes) == ((), (f"throttled ({name}, 4 % of the window)",))

    def test_kinds_of_throttling_add_up(self):
        validity = with_reasons(*[0x20] * 3, *[0x40] * 3, *[0] * 94)
        assert validity.invalid == ("throttled (SW thermal and HW thermal, 6 % of the window)",)

    @pytest.mark.parametrize(
        ("samples", "share"), [(1, "100 %"), (2, "50 %"), (10, "10 %"), (1000, "under 1 %")]
    )
    def test_single_throttled_sample_is_a_note(self, samples, share):
        """A change of clocks shows for a moment, and a short window has few samples."""
        validity = with_reasons(0x8, *[0] * (samples - 1))
        assert (validity.invalid, validity.notes) == (
            (),
            (f"throttled (HW slowdown, {share} of the window)",),
        )

    @pytest.mark.parametrize(
        ("bit", "notes"),
        [
            (0x1, ()),  # idle
            (0x2, ("application clocks (50 % of the window)",)),
            (0x200, ("board limit (50 % of the window)",)),
            (0x10000, ("unknown reason 0x10000 (50 % of the window)",)),
        ],
    )
    def test_configured_clocks_are_noted(self, bit, notes):
        validity = with_reasons(*share_of(bit, 0.5))
        assert (validity.invalid, validity.notes) == ((), notes)
        assert validity.figures["throttled_share"] == 0

    def test_lowered_power_limit_is_noted_with_its_effect(self):
        validity = found(power_limit_w=500.0, samples=sampled(*share_of(0x4, 0.8)))
        assert validity.invalid == ()
        assert validity.notes == ("power limit 500 W, default 700 W, held clocks down in 80 % of the window",)
        assert found(power_limit_w=500.0, samples=()).notes[-1] == "power limit 500 W, default 700 W"

    @pytest.mark.parametrize("limit_w", [None, 0.0, 800.0])
    def test_other_power_limits_are_not_noted(self, limit_w):
        assert found(power_limit_w=limit_w).notes == ()


def test_figures_are_mean_clocks_and_the_highest_temperature():
    samples = tuple(
        DeviceSample(at_s=at_s, sm_mhz=mhz, temperature_c=degrees, event_reasons=0)
        for at_s, mhz, degrees in ((3, 1000, 50), (6, 2000, 80))
    )
    figures = found(samples=samples).figures
    assert (figures["sm_clock_mhz"], figures["temperature_c"]) == (1500.0, 80.0)
    assert "memory_clock_mhz" not in figures
    broken = DeviceSample(at_s=8, sm_mhz=0xFFFFFFFF, memory_mhz=-1, temperature_c=65535, event_reasons=0xFFFF)
    assert found(samples=(*samples, broken)).figures == figures


def process(pid, share, memory_bytes=None):
    return ForeignProcess(pid=pid, busy_share=share, memory_bytes=memory_bytes)


BESIDE = "on the device beside us, "


@pytest.mark.parametrize(
    ("foreign", "invalid", "notes"),
    [
        ([(4711, 0.38, int(2.1 * GIB))], "foreign load (pid 4711, 38 % of the SMs, 2.1 GiB)", ""),
        ([(4711, BUSY_SHARE)], "foreign load (pid 4711, 5 % of the SMs)", ""),
        ([(4711, 0.049, 3 * GIB)], "", f"{BESIDE}hardly busy: pid 4711, 3.0 GiB"),
        ([(4711, None, 3 * GIB)], "", f"{BESIDE}load not known: pid 4711, 3.0 GiB"),
        (
            [(1, 0.2), (2, 0.5), (3, 0.0)],
            "foreign load (pid 2, 1, 70 % of the SMs)",
            f"{BESIDE}hardly busy: pid 3",
        ),
        (
            [(number, 0.02, GIB) for number in range(10, 16)],
            "foreign load (pid 10, 11, 12, 13, …, 12 % of the SMs, 6.0 GiB)",
            "",
        ),
    ],
)
def test_other_processes_are_judged_by_their_load(foreign, invalid, notes):
    validity = found(foreign=tuple(process(*each) for each in foreign))
    assert validity.invalid == ((invalid,) if invalid else ())
    assert validity.notes == ((notes,) if notes else ())


@pytest.mark.parametrize(("before", "invalid"), [(2, True), (5, False), (None, False)])
def test_memory_errors_in_the_window_invalidate(before, invalid):
    validity = found(ecc_uncorrected_before=before, ecc_uncorrected_after=5)
    assert validity.invalid == (("uncorrected memory errors during the window (+3)",) if invalid else ())
    assert validity.notes == ()


PART = "the device was sampled in part: "


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"samples": (), "problems": ("no driver", "no driver")}, "the device was not sampled: no driver"),
        ({"samples": ()}, "the device was not sampled: no sample fell into the window"),
        (
            {"samples": WELL.samples[:30], "problems": ("NVML: GPU is lost",)},
            f"{PART}for 7.05 s of 10 s nothing was sampled; NVML: GPU is lost",
        ),
        ({"samples": sampled(*[None] * 100)}, f"{PART}clock events are not available"),
    ],
)
def test_gaps_are_noted(changes, note):
    validity = found(**changes)
    assert (validity.invalid, validity.notes) == ((), (note,))


@pytest.mark.parametrize(
    ("window_s", "samples", "note"),
    [
        (10.0, 51, ()),  # 4.95 s without samples
        (10.0, 50, (f"{PART}for 5.05 s of 10 s nothing was sampled",)),
        (1.5, 6, ()),  # 0.95 s, most of the window
        (0.2, 1, ()),
        (1.5, 5, (f"{PART}for 1.05 s of 1.5 s nothing was sampled",)),
    ],
)
def test_gap_is_half_of_the_window_and_a_second(window_s, samples, note):
    assert found(samples=sampled(*[0] * samples), end_s=window_s).notes == note


def test_load_and_errors_are_judged_without_samples():
    busy = ForeignProcess(pid=4711, busy_share=0.5)
    assert len(found(samples=(), foreign=(busy,), ecc_uncorrected_after=1).invalid) == 2
