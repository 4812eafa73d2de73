"""Validity of a window: each disturbance alone, at its threshold and just below it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.measure.validity import (
    BUSY_SHARE,
    FOREIGN_BYTES,
    MOVED_BYTES,
    DeviceReadings,
    DeviceSample,
    ForeignProcess,
    assess,
)
from pytest_accel.platforms.nvidia import KNOWN

GIB, MIB = 1 << 30, 1 << 20


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
    pcie_generation=5,
    pcie_generation_max=5,
    pcie_width=16,
    pcie_width_max=16,
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


class TestThrottling:
    @pytest.mark.parametrize(
        ("bit", "name"),
        [(0x8, "HW slowdown"), (0x20, "SW thermal"), (0x40, "HW thermal"), (0x80, "power brake")],
    )
    def test_throttling_invalidates_from_five_percent_on(self, bit, name):
        validity = with_reasons(*share_of(bit | 0x4, 0.34))
        assert validity.invalid == (f"throttled ({name}, 34 % of the window)",)
        assert validity.notes == ()
        assert validity.figures["throttled_share"] == pytest.approx(0.34)
        assert with_reasons(*share_of(bit, 0.05)).invalid == (f"throttled ({name}, 5 % of the window)",)
        below = with_reasons(*share_of(bit, 0.04))
        assert below.invalid == ()
        assert below.notes == (f"throttled ({name}, 4 % of the window)",)

    @pytest.mark.parametrize(("cause", "name"), [(0x40, "HW thermal"), (0x80, "power brake")])
    def test_cause_replaces_the_slowdown(self, cause, name):
        validity = with_reasons(*share_of(0x8 | cause, 0.34))
        assert validity.invalid == (f"throttled ({name}, 34 % of the window)",)

    def test_slowdown_without_a_cause_is_named(self):
        """Software's thermal slowdown does not cause the hardware's."""
        validity = with_reasons(*share_of(0x8 | 0x20, 0.5), *share_of(0x8, 1.0, count=10))
        assert validity.invalid == ("throttled (HW slowdown and SW thermal, 55 % of the window)",)

    def test_kinds_of_throttling_add_up(self):
        validity = with_reasons(*[0x20] * 3, *[0x40] * 3, *[0] * 94)
        assert validity.invalid == ("throttled (SW thermal and HW thermal, 6 % of the window)",)

    def test_small_share_is_not_shown_as_zero(self):
        assert with_reasons(0x40, *[0] * 999).notes == ("throttled (HW thermal, under 1 % of the window)",)

    @pytest.mark.parametrize("count", [1, 2, 10])
    def test_single_throttled_sample_is_a_note(self, count):
        """A change of clocks shows for a moment, and a short window has few samples."""
        validity = with_reasons(0x8, *[0] * (count - 1))
        assert validity.invalid == ()
        assert validity.notes == (f"throttled (HW slowdown, {100 // count} % of the window)",)
        assert with_reasons(0x8, 0x40, *[0] * count).notes == ()

    def test_idle_is_not_noted(self):
        validity = with_reasons(*[0x1] * 10)
        assert validity.invalid == validity.notes == ()

    @pytest.mark.parametrize(
        ("bit", "name"),
        [
            (0x2, "application clocks"),
            (0x10, "sync boost"),
            (0x100, "display clocks"),
            (0x200, "board limit"),
            (0x400, "reliability"),
            (0x10000, "unknown reason 0x10000"),
        ],
    )
    def test_configured_clocks_are_noted(self, bit, name):
        validity = with_reasons(*share_of(bit, 0.5))
        assert validity.invalid == ()
        assert validity.notes == (f"{name} (50 % of the window)",)
        assert validity.figures["throttled_share"] == 0

    def test_lowered_power_limit_is_noted_with_its_effect(self):
        validity = found(power_limit_w=500.0, samples=sampled(*share_of(0x4, 0.8)))
        assert validity.invalid == ()
        assert validity.notes == ("power limit 500 W, default 700 W, held clocks down in 80 % of the window",)
        assert found(power_limit_w=500.0, samples=()).notes[-1] == "power limit 500 W, default 700 W"

    @pytest.mark.parametrize("limit_w", [None, 0.0, 800.0, math.nan])
    def test_other_power_limits_are_not_noted(self, limit_w):
        assert found(power_limit_w=limit_w).notes == ()


class TestFigures:
    def test_mean_clocks_and_the_highest_temperature(self):
        samples = tuple(
            DeviceSample(at_s=at_s, sm_mhz=mhz, temperature_c=degrees, event_reasons=0)
            for at_s, mhz, degrees in ((3, 1000, 50), (6, 2000, 80))
        )
        figures = found(samples=samples).figures
        assert (figures["sm_clock_mhz"], figures["temperature_c"]) == (1500.0, 80.0)
        assert "memory_clock_mhz" not in figures

    def test_implausible_readings_are_ignored(self):
        validity = found(
            samples=sampled(KNOWN, 2**64 - 1, sm_mhz=2**32 - 1, memory_mhz=-1, temperature_c=2**31)
        )
        assert validity.figures == {}
        assert validity.invalid == ()


class TestForeignProcesses:
    def test_busy_process_invalidates(self):
        process = ForeignProcess(pid=4711, memory_bytes=int(2.1 * GIB), busy_share=0.38)
        assert found(foreign=(process,)).invalid == ("foreign load (pid 4711, 38 % of the SMs, 2.1 GiB)",)
        assert found(foreign=(replace(process, busy_share=BUSY_SHARE, memory_bytes=None),)).invalid == (
            "foreign load (pid 4711, 5 % of the SMs)",
        )

    @pytest.mark.parametrize("share", [0.0, 0.049])
    def test_idle_process_is_noted(self, share):
        validity = found(foreign=(ForeignProcess(pid=4711, memory_bytes=3 * GIB, busy_share=share),))
        assert validity.invalid == ()
        assert validity.notes == ("on the device beside us, hardly busy: pid 4711, 3.0 GiB",)

    @pytest.mark.parametrize("share", [None, math.nan, -1.0, 7.0])
    def test_process_of_unknown_load_is_noted(self, share):
        validity = found(foreign=(ForeignProcess(pid=4711, busy_share=share),))
        assert validity.invalid == ()
        assert validity.notes == ("on the device beside us, load not known: pid 4711",)

    def test_loads_add_up(self):
        loud = (ForeignProcess(pid=1, busy_share=0.2), ForeignProcess(pid=2, busy_share=0.5))
        validity = found(foreign=(*loud, ForeignProcess(pid=3, busy_share=0.0)))
        assert validity.invalid == ("foreign load (pid 2, 1, 70 % of the SMs)",)
        assert validity.notes == ("on the device beside us, hardly busy: pid 3",)
        crowd = tuple(
            ForeignProcess(pid=10 + number, busy_share=0.02, memory_bytes=GIB) for number in range(6)
        )
        assert found(foreign=crowd).invalid == (
            "foreign load (pid 10, 11, 12, 13, …, 12 % of the SMs, 6.0 GiB)",
        )


class TestHiddenProcesses:
    """A container hides pids: others show by their memory only."""

    @staticmethod
    def seen(*readings, foreign_bytes=2 * GIB):
        samples = tuple(
            DeviceSample(at_s=number / 2, event_reasons=0, memory_used_bytes=used, own_memory_bytes=own)
            for number, (used, own) in enumerate(readings)
        )
        return found(samples=samples, end_s=len(readings) / 2, foreign_memory_bytes=foreign_bytes)

    def test_constant_foreign_memory_is_noted(self):
        validity = self.seen(*[(10 * GIB, 8 * GIB)] * 9)
        assert validity.invalid == ()
        assert validity.notes == (
            "2.0 GiB in use that are not our tensors (processes are hidden here: others, or our own CUDA context)",
        )

    def test_little_foreign_memory_is_ignored(self):
        assert self.seen(*[(10 * GIB, 8 * GIB)] * 9, foreign_bytes=FOREIGN_BYTES).notes == ()
        assert self.seen(*[(10 * GIB, 8 * GIB)] * 9, foreign_bytes=None).notes == ()

    def test_changing_foreign_memory_invalidates(self):
        validity = self.seen(*[(10 * GIB, 8 * GIB)] * 5, *[(13 * GIB, 8 * GIB)] * 5)
        assert validity.invalid == (
            "foreign load (processes are hidden here; memory that is not ours moved by 3.0 GiB during the window)",
        )
        assert validity.notes == ()

    @pytest.mark.parametrize(("more", "valid"), [(MOVED_BYTES, True), (MOVED_BYTES + MIB, False)])
    def test_changing_foreign_memory_has_a_threshold(self, more, valid):
        validity = self.seen(*[(10 * GIB, 8 * GIB)] * 5, *[(10 * GIB + more, 8 * GIB)] * 5)
        assert (validity.invalid == ()) is valid

    def test_growth_of_own_memory_is_valid(self):
        assert self.seen(*[((10 + number) * GIB, (8 + number) * GIB) for number in range(9)]).invalid == ()

    def test_single_outlier_is_ignored(self):
        steady = [(10 * GIB, 8 * GIB)] * 4
        assert self.seen(*steady, (10 * GIB, 9 * GIB), *steady).invalid == ()

    def test_unknown_own_memory_counts_as_constant(self):
        assert self.seen(*[(10 * GIB, None)] * 9).invalid == ()
        assert "moved by 1.0 GiB" in self.seen(*[(10 * GIB, None)] * 5, *[(11 * GIB, None)] * 5).invalid[0]

    def test_samples_without_own_memory_are_not_mixed_with_others(self):
        readings = [(10 * GIB, 8 * GIB), (10 * GIB, None)] * 6
        assert self.seen(*readings).invalid == ()

    def test_visible_processes_replace_the_memory_check(self):
        validity = found(
            foreign=(ForeignProcess(pid=7, busy_share=0.0, memory_bytes=2 * GIB),),
            foreign_memory_bytes=2 * GIB,
        )
        assert validity.notes == ("on the device beside us, hardly busy: pid 7, 2.0 GiB",)


class TestDevice:
    def test_new_uncorrected_errors_invalidate(self):
        assert found(ecc_uncorrected_before=2, ecc_uncorrected_after=5).invalid == (
            "uncorrected memory errors during the window (+3)",
        )

    @pytest.mark.parametrize(("before", "after"), [(3, 3), (3, 0), (None, 3), (3, None)])
    def test_old_or_unknown_memory_errors_are_valid(self, before, after):
        validity = found(ecc_uncorrected_before=before, ecc_uncorrected_after=after)
        assert validity.invalid == validity.notes == ()

    @pytest.mark.parametrize(
        ("changes", "notes"),
        [
            ({"pcie_width": 8}, ("PCIe x8, at most x16",)),
            ({"pcie_generation": 3}, ("PCIe generation 3, at most 5",)),
            ({"pcie_generation": 3, "samples": sampled(0x1, 0x1)}, ()),  # an idle link saves power
            ({"pcie_width": 8, "samples": sampled(0x1, 0x1)}, ("PCIe x8, at most x16",)),
            ({"pcie_width": 0}, ()),
            ({"pcie_width": None, "pcie_generation_max": None}, ()),
        ],
    )
    def test_slow_link_is_noted(self, changes, notes):
        validity = found(end_s=0.2, **changes)
        assert validity.invalid == ()
        assert validity.notes == notes


class TestGaps:
    def test_missing_samples_are_noted_with_the_reason(self):
        validity = found(samples=(), problems=("driver not loaded", "driver not loaded"))
        assert validity.invalid == ()
        assert validity.notes == ("the device was not sampled: driver not loaded",)
        assert validity.figures == {}

    def test_missing_samples_are_noted_without_a_reason(self):
        assert found(samples=()).notes == ("the device was not sampled: no sample fell into the window",)

    def test_load_and_errors_are_judged_without_samples(self):
        busy = ForeignProcess(pid=4711, busy_share=0.5)
        assert len(found(samples=(), foreign=(busy,), ecc_uncorrected_after=1).invalid) == 2

    def test_sampling_that_ended_early_is_noted(self):
        validity = found(samples=WELL.samples[:30], problems=("NVML: GPU is lost",))
        assert validity.notes == (
            "the device was sampled in part: for 7.05 s of 10 s nothing was sampled; NVML: GPU is lost",
        )

    def test_single_sample_covers_a_short_window(self):
        assert found(samples=sampled(0), end_s=0.2).notes == ()
        assert "nothing was sampled" in found(samples=sampled(0)).notes[0]

    def test_missing_clock_events_are_noted(self):
        validity = with_reasons(*[None] * 100)
        assert validity.notes == ("the device was sampled in part: clock events are not available",)
        assert set(validity.figures) == {"sm_clock_mhz", "memory_clock_mhz", "temperature_c"}


_ANY = st.none() | st.integers(-(2**63), 2**64)
_SAMPLES = st.builds(
    DeviceSample,
    at_s=st.floats(),
    sm_mhz=_ANY,
    memory_mhz=_ANY,
    temperature_c=_ANY,
    event_reasons=_ANY,
    memory_used_bytes=_ANY,
    own_memory_bytes=_ANY,
)
_READINGS = st.builds(
    DeviceReadings,
    begin_s=st.floats(),
    end_s=st.floats(),
    samples=st.lists(_SAMPLES, max_size=6).map(tuple),
    power_limit_w=st.none() | st.floats(),
    power_limit_default_w=st.none() | st.floats(),
    ecc_uncorrected_before=_ANY,
    ecc_uncorrected_after=_ANY,
    pcie_generation=_ANY,
    pcie_generation_max=_ANY,
    pcie_width=_ANY,
    pcie_width_max=_ANY,
    foreign=st.lists(
        st.builds(ForeignProcess, pid=st.integers(), memory_bytes=_ANY, busy_share=st.none() | st.floats())
    ).map(tuple),
    foreign_memory_bytes=_ANY,
    problems=st.lists(st.text()).map(tuple),
)


@given(_READINGS)
def test_arbitrary_readings_are_judged(readings):
    validity = assess(readings)
    assert all(math.isfinite(figure) for figure in validity.figures.values())
    assert readings.samples or "the device was not sampled" in validity.notes[0]


@given(st.lists(st.integers(0, KNOWN - 1), min_size=1, max_size=60))
def test_throttling_is_reported_if_and_only_if_seen(reasons):
    validity = with_reasons(*reasons)
    seen = sum(1 for each in reasons if each & 0xE8)
    share = seen / len(reasons)
    often = seen >= 2 and share >= 0.05
    assert validity.figures["throttled_share"] == pytest.approx(share)
    assert any(text.startswith("throttled") for text in validity.invalid) is often
    assert any(text.startswith("throttled") for text in validity.notes) is (seen > 0 and not often)
