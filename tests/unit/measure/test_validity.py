"""Whether a window was fair: each disturbance alone, at its threshold and just below it."""

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
from pytest_accel.platforms.nvidia import EVENTS, KNOWN

GIB, MIB = 1 << 30, 1 << 20
NAMES = {event.name for event in EVENTS}


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
    device="GPU-8f3aab12",
    begin_s=0.0,
    end_s=10.0,
    samples=sampled(
        *[0x4] * 100
    ),  # an H200 under matrix products: the power cap at its default limit, always
    sm_max_mhz=1980,
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


def test_the_power_cap_at_its_default_is_a_figure_and_no_fault():
    fairness = assess(WELL)
    assert fairness.invalid == fairness.notes == ()
    assert fairness.shares == {"power cap": 1.0}
    assert fairness.figures == {
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
    def test_each_kind_from_five_percent_on(self, bit, name):
        fairness = with_reasons(*share_of(bit | 0x4, 0.34))
        assert fairness.invalid == (f"throttled ({name}, 34 % of the window)",)
        assert fairness.notes == ()
        assert fairness.shares[name] == fairness.figures["throttled_share"] == pytest.approx(0.34)
        assert with_reasons(*share_of(bit, 0.05)).invalid == (f"throttled ({name}, 5 % of the window)",)
        below = with_reasons(*share_of(bit, 0.04))
        assert below.invalid == ()
        assert below.notes == (f"throttled ({name}, 4 % of the window)",)

    @pytest.mark.parametrize(("cause", "name"), [(0x40, "HW thermal"), (0x80, "power brake")])
    def test_the_cause_is_told_and_not_the_slowdown_besides(self, cause, name):
        fairness = with_reasons(*share_of(0x8 | cause, 0.34))
        assert fairness.invalid == (f"throttled ({name}, 34 % of the window)",)
        assert "HW slowdown" not in fairness.shares

    def test_a_slowdown_whose_cause_is_not_told_stays_one(self):
        """Software's thermal slowdown does not cause the hardware's."""
        fairness = with_reasons(*share_of(0x8 | 0x20, 0.5), *share_of(0x8, 1.0, count=10))
        assert fairness.invalid == ("throttled (HW slowdown and SW thermal, 55 % of the window)",)

    def test_kinds_add_up(self):
        fairness = with_reasons(*[0x20] * 3, *[0x40] * 3, *[0] * 94)
        assert fairness.invalid == ("throttled (SW thermal and HW thermal, 6 % of the window)",)

    def test_what_was_seen_once_in_a_thousand_is_not_nothing(self):
        assert with_reasons(0x40, *[0] * 999).notes == ("throttled (HW thermal, under 1 % of the window)",)

    def test_samples_without_an_answer_do_not_dilute(self):
        fairness = with_reasons(0x40, 0x40, 0, 0, *[None] * 96)
        assert fairness.invalid == ("throttled (HW thermal, 50 % of the window)",)

    @pytest.mark.parametrize("count", [1, 2, 10])
    def test_one_sample_is_noted_however_few_there_are(self, count):
        """A change of clocks shows for a moment, and a short window has few samples."""
        fairness = with_reasons(0x8, *[0] * (count - 1))
        assert fairness.invalid == ()
        assert fairness.notes == (f"throttled (HW slowdown, {100 // count} % of the window)",)
        assert with_reasons(0x8, 0x40, *[0] * count).notes == ()

    def test_idle_is_no_reason(self):
        fairness = with_reasons(*[0x1] * 10)
        assert fairness.invalid == fairness.notes == ()
        assert fairness.shares == {}

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
    def test_what_was_set_on_purpose_is_noted(self, bit, name):
        fairness = with_reasons(*share_of(bit, 0.5))
        assert fairness.invalid == ()
        assert fairness.notes == (f"{name} (50 % of the window)",)
        assert fairness.figures["throttled_share"] == 0

    def test_a_lowered_power_limit_is_noted_with_what_it_did(self):
        fairness = found(power_limit_w=500.0, samples=sampled(*share_of(0x4, 0.8)))
        assert fairness.invalid == ()
        assert fairness.notes == ("power limit 500 W, default 700 W, held clocks down in 80 % of the window",)
        assert found(power_limit_w=500.0, samples=()).notes[-1] == "power limit 500 W, default 700 W"

    @pytest.mark.parametrize("limit_w", [None, 0.0, 800.0, math.nan])
    def test_another_limit_is_not(self, limit_w):
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

    def test_impossible_readings_are_no_figures(self):
        fairness = found(
            samples=sampled(KNOWN, 2**64 - 1, sm_mhz=2**32 - 1, memory_mhz=-1, temperature_c=2**31)
        )
        assert fairness.figures == {}
        assert fairness.invalid == ()


class TestForeignProcesses:
    def test_a_busy_one_invalidates(self):
        process = ForeignProcess(pid=4711, memory_bytes=int(2.1 * GIB), busy_share=0.38)
        assert found(foreign=(process,)).invalid == ("foreign load (pid 4711, 38 % of the SMs, 2.1 GiB)",)
        assert found(foreign=(replace(process, busy_share=BUSY_SHARE, memory_bytes=None),)).invalid == (
            "foreign load (pid 4711, 5 % of the SMs)",
        )

    @pytest.mark.parametrize("share", [0.0, 0.049])
    def test_one_that_only_holds_memory_is_noted(self, share):
        fairness = found(foreign=(ForeignProcess(pid=4711, memory_bytes=3 * GIB, busy_share=share),))
        assert fairness.invalid == ()
        assert fairness.notes == ("on the device beside us, hardly busy: pid 4711, 3.0 GiB",)

    @pytest.mark.parametrize("share", [None, math.nan, -1.0, 7.0])
    def test_one_whose_load_nobody_knows_is_not_accused(self, share):
        fairness = found(foreign=(ForeignProcess(pid=4711, busy_share=share),))
        assert fairness.invalid == ()
        assert fairness.notes == ("on the device beside us, load not known: pid 4711",)

    def test_each_busy_one_is_named_and_the_idle_are_noted(self):
        fairness = found(
            foreign=(
                ForeignProcess(pid=1, busy_share=0.5),
                ForeignProcess(pid=2, busy_share=0.2),
                ForeignProcess(pid=3, busy_share=0.01),
            )
        )
        assert fairness.invalid == (
            "foreign load (pid 1, 50 % of the SMs)",
            "foreign load (pid 2, 20 % of the SMs)",
        )
        assert fairness.notes == ("on the device beside us, hardly busy: pid 3",)

    def test_many_that_are_hardly_busy_are_busy_together(self):
        crowd = tuple(
            ForeignProcess(pid=10 + number, busy_share=0.02, memory_bytes=GIB) for number in range(6)
        )
        fairness = found(foreign=crowd)
        assert fairness.invalid == ("foreign load (pid 10, 11, 12, 13, …, 12 % of the SMs, 6.0 GiB)",)
        assert fairness.notes == ()


class TestHiddenProcesses:
    """A container hides pids: only memory tells of others."""

    @staticmethod
    def watched(*readings, foreign_bytes=2 * GIB):
        samples = tuple(
            DeviceSample(at_s=number / 2, event_reasons=0, memory_used_bytes=used, own_memory_bytes=own)
            for number, (used, own) in enumerate(readings)
        )
        return found(samples=samples, end_s=len(readings) / 2, foreign_memory_bytes=foreign_bytes)

    def test_memory_that_stands_still_is_noted(self):
        fairness = self.watched(*[(10 * GIB, 8 * GIB)] * 9)
        assert fairness.invalid == ()
        assert fairness.notes == (
            "2.0 GiB in use that are not our tensors (processes are hidden here: others, or our own CUDA context)",
        )

    def test_little_memory_is_the_drivers(self):
        assert self.watched(*[(10 * GIB, 8 * GIB)] * 9, foreign_bytes=FOREIGN_BYTES).notes == ()
        assert self.watched(*[(10 * GIB, 8 * GIB)] * 9, foreign_bytes=None).notes == ()

    def test_memory_of_others_that_moves_invalidates(self):
        fairness = self.watched(*[(10 * GIB, 8 * GIB)] * 5, *[(13 * GIB, 8 * GIB)] * 5)
        assert fairness.invalid == (
            "foreign load (processes are hidden here; memory that is not ours moved by 3.0 GiB during the window)",
        )
        assert fairness.notes == ()

    @pytest.mark.parametrize(("more", "is_fair"), [(MOVED_BYTES, True), (MOVED_BYTES + MIB, False)])
    def test_by_more_than_the_threshold(self, more, is_fair):
        fairness = self.watched(*[(10 * GIB, 8 * GIB)] * 5, *[(10 * GIB + more, 8 * GIB)] * 5)
        assert (fairness.invalid == ()) is is_fair

    def test_our_own_growth_is_not_held_against_others(self):
        assert self.watched(*[((10 + number) * GIB, (8 + number) * GIB) for number in range(9)]).invalid == ()

    def test_one_sample_between_two_readings_of_ours_is_passed_over(self):
        steady = [(10 * GIB, 8 * GIB)] * 4
        assert self.watched(*steady, (10 * GIB, 9 * GIB), *steady).invalid == ()

    def test_where_ours_is_not_known_a_settled_step_keeps_what_it_has(self):
        assert self.watched(*[(10 * GIB, None)] * 9).invalid == ()
        assert "moved by 1.0 GiB" in self.watched(*[(10 * GIB, None)] * 5, *[(11 * GIB, None)] * 5).invalid[0]

    def test_samples_where_ours_was_not_told_are_not_mixed_with_the_others(self):
        readings = [(10 * GIB, 8 * GIB), (10 * GIB, None)] * 6
        assert self.watched(*readings).invalid == ()

    def test_processes_that_are_seen_go_before_memory(self):
        fairness = found(
            foreign=(ForeignProcess(pid=7, busy_share=0.0, memory_bytes=2 * GIB),),
            foreign_memory_bytes=2 * GIB,
        )
        assert fairness.notes == ("on the device beside us, hardly busy: pid 7, 2.0 GiB",)


class TestTheDevice:
    def test_new_uncorrected_errors_invalidate(self):
        assert found(ecc_uncorrected_before=2, ecc_uncorrected_after=5).invalid == (
            "uncorrected memory errors during the window (+3)",
        )

    @pytest.mark.parametrize(("before", "after"), [(3, 3), (None, 3), (3, None), (None, None)])
    def test_old_or_unknown_ones_do_not(self, before, after):
        fairness = found(ecc_uncorrected_before=before, ecc_uncorrected_after=after)
        assert fairness.invalid == fairness.notes == ()

    def test_a_count_that_fell_is_noted(self):
        fairness = found(ecc_uncorrected_before=3, ecc_uncorrected_after=0)
        assert fairness.invalid == ()
        assert "fell from 3 to 0: the GPU was reset" in fairness.notes[0]

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
    def test_a_lesser_link_is_noted(self, changes, notes):
        fairness = found(end_s=0.2, **changes)
        assert fairness.invalid == ()
        assert fairness.notes == notes


class TestWhatWasNotSeen:
    def test_no_samples_are_a_note_with_the_reason(self):
        fairness = found(samples=(), problems=("driver not loaded", "driver not loaded"))
        assert fairness.invalid == ()
        assert fairness.notes == ("the device was not sampled: driver not loaded",)
        assert fairness.figures == fairness.shares == {}

    def test_or_without_one(self):
        assert found(samples=()).notes == ("the device was not sampled: no sample fell into the window",)

    def test_what_needs_no_samples_is_judged_without_them(self):
        busy = ForeignProcess(pid=4711, busy_share=0.5)
        assert len(found(samples=(), foreign=(busy,), ecc_uncorrected_after=1).invalid) == 2

    def test_a_watch_that_ended_early_says_so(self):
        fairness = found(samples=WELL.samples[:30], problems=("NVML: GPU is lost",))
        assert fairness.notes == (
            "the device was sampled in part: for 7.05 s of 10 s nothing was sampled; NVML: GPU is lost",
        )

    def test_one_sample_is_enough_for_a_short_window(self):
        assert found(samples=sampled(0), end_s=0.2).notes == ()
        assert "nothing was sampled" in found(samples=sampled(0)).notes[0]

    def test_a_device_that_tells_no_reasons_says_so(self):
        fairness = with_reasons(*[None] * 100)
        assert fairness.notes == ("the device was sampled in part: clock events are not available",)
        assert set(fairness.figures) == {"sm_clock_mhz", "memory_clock_mhz", "temperature_c"}


_ANY = st.none() | st.integers(-(2**63), 2**64)
_SAMPLES = st.builds(
    DeviceSample,
    at_s=st.floats(),
    sm_mhz=_ANY,
    memory_mhz=_ANY,
    temperature_c=_ANY,
    utilisation_percent=_ANY,
    event_reasons=_ANY,
    memory_used_bytes=_ANY,
    own_memory_bytes=_ANY,
)
_WATCHES = st.builds(
    DeviceReadings,
    device=st.just("GPU-a"),
    begin_s=st.floats(),
    end_s=st.floats(),
    samples=st.lists(_SAMPLES, max_size=6).map(tuple),
    sm_max_mhz=_ANY,
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


@given(_WATCHES)
def test_no_answer_is_too_strange(watch):
    fairness = assess(watch)
    assert all(math.isfinite(figure) for figure in fairness.figures.values())
    assert all(0 < share <= 1 for share in fairness.shares.values())
    assert watch.samples or "the device was not sampled" in fairness.notes[0]


@given(st.lists(st.integers(0, KNOWN - 1), min_size=1, max_size=60))
def test_throttling_is_told_if_and_only_if_it_was_seen(reasons):
    fairness = with_reasons(*reasons)
    seen = sum(1 for each in reasons if each & 0xE8)
    share = seen / len(reasons)
    often = seen >= 2 and share >= 0.05
    assert fairness.figures["throttled_share"] == pytest.approx(share)
    assert any(text.startswith("throttled") for text in fairness.invalid) is often
    assert any(text.startswith("throttled") for text in fairness.notes) is (seen > 0 and not often)
    assert set(fairness.shares) <= NAMES
