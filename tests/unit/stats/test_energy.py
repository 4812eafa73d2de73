"""Energy of a window: right, or absent with its reason."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_accel.stats.energy import (
    LONE_SAMPLE_S,
    MOST_W,
    Energy,
    EnergyWindow,
    PowerSample,
    Rail,
    counted_j,
    energy_of,
    joules_per_unit,
    peak_total_w,
    sampled_j,
    tdp_share,
    total_j,
    units_per_wh,
    wh_per_epoch,
)

GPU = Rail(name="GPU 0", scope="device", kind="gpu")
RAPL = Rail(name="package-0", scope="node", kind="cpu", wraps_j=262_143.3)  # a common max_energy_range_uj

SECONDS = st.floats(0, 1e5)
WATTS = st.floats(0, 1000)
GARBAGE_W = st.sampled_from([math.nan, math.inf, -math.inf, -0.1, 4_294_967.295])  # 0xffffffff mW


def close(value, *, of):
    """Equal up to rounding; `of` is what was added up on the way."""
    return pytest.approx(value, rel=1e-9, abs=1e-9 * (1 + abs(of)))


def window(*samples, end_s=10.0, rail=GPU, before_j=None, after_j=None, problems=()):
    return EnergyWindow(
        begin_s=0.0,
        end_s=end_s,
        before_j={} if before_j is None else {rail.name: before_j},
        after_j={} if after_j is None else {rail.name: after_j},
        samples=tuple(PowerSample(at_s=at_s, power_w={rail.name: power_w}) for at_s, power_w in samples),
        rails=(rail,),
        problems=problems,
    )


def steady(power_w, *, until_s=10.0, period_s=0.5):
    return [(number * period_s, power_w) for number in range(int(until_s / period_s) + 1)]


class TestCounters:
    @given(st.lists(st.floats(0, 1e9), min_size=3, max_size=3).map(sorted))
    def test_adjacent_windows_add_up(self, counts_j):
        first, middle, last = counts_j
        assert counted_j(first, middle) + counted_j(middle, last) == close(counted_j(first, last), of=last)

    @given(st.integers(1, 2**40), st.data())
    def test_adjacent_windows_add_up_across_a_wrap(self, wraps_j, data):
        """Wherever the wrap falls, exactly; the union uses less than one wrap, or nobody could tell."""
        start_j = data.draw(st.integers(0, wraps_j - 1))
        used_j = sorted(data.draw(st.lists(st.integers(0, wraps_j - 1), min_size=2, max_size=2)))
        first, middle, last = (float((start_j + more_j) % wraps_j) for more_j in (0, *used_j))
        assert counted_j(first, last, wraps_j) == used_j[1]
        assert counted_j(first, middle, wraps_j) + counted_j(middle, last, wraps_j) == used_j[1]

    @given(st.floats(), st.floats(), st.none() | st.floats())
    @example(5.0, 3.0, math.inf)
    def test_never_negative_whatever_the_counter_says(self, before_j, after_j, wraps_j):
        energy_j = counted_j(before_j, after_j, wraps_j)
        assert energy_j is None or (energy_j >= 0 and math.isfinite(energy_j))

    def test_a_counter_that_went_backwards_is_not_guessed_at(self):
        assert counted_j(1000.0, 4.0) is None

    def test_a_wrap_is_counted_through(self):
        assert counted_j(262_000.0, 100.0, 262_143.3) == pytest.approx(243.3)

    @pytest.mark.parametrize(("before_j", "after_j"), [(300_000.0, 5.0), (5.0, 300_000.0)])
    def test_beyond_its_own_wrap_a_counter_is_broken(self, before_j, after_j):
        assert counted_j(before_j, after_j, 262_143.3) is None


@st.composite
def profiles(draw):
    times_s = sorted(draw(st.lists(SECONDS, min_size=1, max_size=12)))
    powers_w = draw(st.lists(WATTS, min_size=len(times_s), max_size=len(times_s)))
    return times_s, powers_w


class TestSamples:
    @given(profiles(), st.lists(SECONDS, min_size=3, max_size=3).map(sorted))
    def test_adjacent_windows_over_the_same_samples_add_up(self, profile, bounds_s):
        """Wherever the boundary falls: on a sample, between two, before the first, after the last."""
        begin_s, middle_s, end_s = bounds_s
        whole_j = sampled_j(*profile, begin_s, end_s)
        halves_j = sampled_j(*profile, begin_s, middle_s) + sampled_j(*profile, middle_s, end_s)
        assert halves_j == close(whole_j, of=1000 * (end_s - begin_s))

    @given(profiles(), st.data())
    def test_adjacent_windows_that_share_their_boundary_sample_add_up(self, profile, data):
        times_s, powers_w = profile
        cut = data.draw(st.integers(0, len(times_s) - 1))
        begin_s, end_s = times_s[0] - 1, times_s[-1] + 1
        left_j = sampled_j(times_s[: cut + 1], powers_w[: cut + 1], begin_s, times_s[cut])
        right_j = sampled_j(times_s[cut:], powers_w[cut:], times_s[cut], end_s)
        assert left_j + right_j == close(sampled_j(*profile, begin_s, end_s), of=1000 * (end_s - begin_s))

    @given(profiles(), SECONDS, st.floats(0, 1e4))
    def test_between_the_least_and_the_most_power(self, profile, begin_s, window_s):
        energy_j = sampled_j(*profile, begin_s, begin_s + window_s)
        length_s = (begin_s + window_s) - begin_s
        assert min(profile[1]) * length_s * (1 - 1e-9) <= energy_j <= max(profile[1]) * length_s * (1 + 1e-9)

    def test_a_ramp_is_a_trapezoid_and_ends_are_held(self):
        assert sampled_j([1.0, 3.0], [100.0, 300.0], 0.0, 4.0) == pytest.approx(100 + 400 + 300)
        assert sampled_j([1.0, 3.0], [100.0, 300.0], 1.0, 2.0) == pytest.approx(150)

    def test_one_sample_is_power_times_time(self):
        assert sampled_j([0.1], [700.0], 0.0, 0.5) == pytest.approx(350)

    def test_two_samples_on_one_tick_of_the_clock_are_a_jump(self):
        assert sampled_j([0.0, 1.0, 1.0, 2.0], [100.0, 100.0, 300.0, 300.0], 0.0, 2.0) == pytest.approx(400)

    @pytest.mark.parametrize(
        ("times_s", "powers_w"),
        [([], []), ([0.0, 1.0], [5.0]), ([1.0, 0.5], [5.0, 5.0]), ([math.nan], [5.0])],
    )
    def test_nothing_comes_of_nothing(self, times_s, powers_w):
        assert sampled_j(times_s, powers_w, 0.0, 1.0) is None

    def test_a_window_that_ends_before_it_begins_has_no_energy(self):
        assert sampled_j([0.0], [5.0], 1.0, 0.0) is None
        assert sampled_j([0.0], [5.0], 0.0, math.nan) is None

    @given(profiles(), GARBAGE_W, st.data())
    def test_one_garbage_sample_spoils_the_integral(self, profile, garbage, data):
        times_s, powers_w = profile
        powers_w[data.draw(st.integers(0, len(powers_w) - 1))] = garbage
        assert sampled_j(times_s, powers_w, 0.0, 1e5) is None


class TestEnergyOf:
    def test_the_counter_goes_before_the_samples_and_both_are_told(self):
        energy = energy_of(window(*steady(690.0), before_j=1000.0, after_j=7880.0))
        assert energy.energy_j == {"GPU 0": 6880.0}
        assert energy.sampled_j == {"GPU 0": pytest.approx(6900.0)}
        assert energy.mean_w == {"GPU 0": pytest.approx(688.0)}
        assert energy.peak_w == {"GPU 0": 690.0}
        assert energy.problems == ()

    def test_samples_where_there_is_no_counter(self):
        energy = energy_of(window(*steady(690.0)))
        assert energy.energy_j == energy.sampled_j == {"GPU 0": pytest.approx(6900.0)}
        assert energy.problems == ()

    def test_a_counter_alone_has_no_peak(self):
        energy = energy_of(window(before_j=0.0, after_j=5000.0))
        assert energy.mean_w == {"GPU 0": 500.0}
        assert energy.peak_w == energy.sampled_j == {}
        assert energy.problems == ()

    def test_nothing_read_is_said(self):
        energy = energy_of(window(problems=("RAPL: permission refused", "RAPL: permission refused")))
        assert energy.energy_j == {}
        assert energy.problems == (
            "RAPL: permission refused",
            "GPU 0: neither a counter nor samples of its power",
        )

    def test_a_peak_outside_the_window_is_not_its_peak(self):
        energy = energy_of(window((-0.5, 900.0), *steady(500.0), (10.5, 950.0)))
        assert energy.peak_w == {"GPU 0": 500.0}

    @pytest.mark.parametrize("end_s", [0.0, -1.0, math.nan, math.inf])
    def test_a_window_without_length_has_no_energy(self, end_s):
        energy = energy_of(window(*steady(500.0), end_s=end_s, before_j=0.0, after_j=5.0))
        assert energy.energy_j == energy.mean_w == {}
        assert "has no length" in energy.problems[0]

    @given(
        st.floats(-1e4, 1e4),
        st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)),
        st.lists(WATTS, min_size=9, max_size=9),
        st.booleans(),
        st.floats(0, 1),
    )
    def test_adjacent_windows_add_up_to_their_union(self, begin_s, lengths_s, powers_w, has_counter, start):
        """As sampled, and as counted by a counter that wraps at any moment."""
        bounds_s = [begin_s, begin_s + lengths_s[0], begin_s + sum(lengths_s)]
        times_s = [begin_s + sum(lengths_s) * number / 8 for number in range(9)]
        rail = Rail(name="GPU 0", scope="device", wraps_j=1e6)

        def counter(at_s):
            return (start * 1e6 + sampled_j(times_s, powers_w, begin_s, at_s)) % 1e6

        def over(left_s, right_s):
            read = EnergyWindow(
                begin_s=left_s,
                end_s=right_s,
                before_j={"GPU 0": counter(left_s)} if has_counter else {},
                after_j={"GPU 0": counter(right_s)} if has_counter else {},
                samples=tuple(
                    PowerSample(at_s=at_s, power_w={"GPU 0": power_w})
                    for at_s, power_w in zip(times_s, powers_w, strict=True)
                ),
                rails=(rail,),
            )
            return energy_of(read).energy_j["GPU 0"]

        parts_j = [over(left_s, right_s) for left_s, right_s in pairwise(bounds_s)]
        assert sum(parts_j) == pytest.approx(over(bounds_s[0], bounds_s[2]), rel=1e-6, abs=1e-6)


class TestGarbage:
    """None with a reason; a counter and samples do not spoil each other."""

    @given(GARBAGE_W)
    def test_samples_of_garbage(self, garbage):
        energy = energy_of(window(*steady(500.0), (10.0, garbage)))
        assert energy.energy_j == energy.peak_w == {}
        assert energy.problems == (f"GPU 0: a sample of its power says {garbage!r} W",)

    def test_garbage_samples_leave_the_counter_standing(self):
        energy = energy_of(window((0.0, math.nan), before_j=0.0, after_j=5000.0))
        assert energy.energy_j == {"GPU 0": 5000.0}
        assert energy.sampled_j == {}
        assert energy.problems == ("GPU 0: a sample of its power says nan W",)

    def test_times_out_of_order(self):
        energy = energy_of(window(*reversed(steady(500.0))))
        assert energy.energy_j == {}
        assert energy.problems == ("GPU 0: the samples of its power are out of order",)

    def test_rails_may_be_sampled_each_at_its_own_times(self):
        """Another rail's samples come after these in the tuple: that is not disorder."""
        samples = tuple(
            PowerSample(at_s=at_s, power_w={name: power_w})
            for name, power in (("GPU 0", 500.0), ("package-0", 100.0))
            for at_s, power_w in steady(power)
        )
        energy = energy_of(EnergyWindow(begin_s=0.0, end_s=10.0, samples=samples, rails=(GPU, RAPL)))
        assert energy.energy_j == {"GPU 0": pytest.approx(5000.0), "package-0": pytest.approx(1000.0)}
        assert energy.problems == ()

    @pytest.mark.parametrize(
        ("seen", "words"),
        [
            (steady(500.0, until_s=5.0), "not seen for 5 s of 10 s"),
            ([(at_s, 500.0) for at_s, _ in steady(0.0) if at_s >= 4], "not seen for 4 s of 10 s"),
            ([(at_s, 500.0) for at_s, _ in steady(0.0) if not 3 < at_s < 6], "not seen for 3 s of 10 s"),
            ([(3.0, 500.0)], "not seen for 7 s of 10 s"),
            ([(-2.0, 500.0), (-1.0, 500.0)], "not seen for 10 s of 10 s"),
        ],
    )
    def test_a_rail_that_vanishes_is_not_extrapolated(self, seen, words):
        energy = energy_of(window(*seen))
        assert energy.energy_j == {}
        assert words in energy.problems[0]

    def test_a_lost_reading_now_and_then_is_interpolated(self):
        seen = [sample for number, sample in enumerate(steady(500.0)) if number not in (4, 5, 20)]
        assert energy_of(window(*seen)).energy_j == {"GPU 0": pytest.approx(5000.0)}

    def test_one_sample_will_do_for_a_window_shorter_than_the_period(self):
        energy = energy_of(window((0.01, 500.0), end_s=LONE_SAMPLE_S))
        assert energy.energy_j == {"GPU 0": pytest.approx(500 * LONE_SAMPLE_S)}

    @pytest.mark.parametrize(("counts", "end"), [({"before_j": 5.0}, "end"), ({"after_j": 5.0}, "beginning")])
    def test_a_counter_that_vanishes(self, counts, end):
        energy = energy_of(window(**counts))
        assert energy.energy_j == {}
        assert energy.problems == (f"GPU 0: its counter did not answer at the {end} of the window",)

    def test_samples_stand_in_for_a_counter_that_vanished_and_that_is_said(self):
        energy = energy_of(window(*steady(500.0), before_j=5.0))
        assert energy.energy_j == {"GPU 0": pytest.approx(5000.0)}
        assert energy.problems == (
            "GPU 0: its counter did not answer at the end of the window; its energy is that of its samples",
        )

    def test_a_counter_that_was_reset(self):
        energy = energy_of(window(before_j=1e6, after_j=12.0))
        assert energy.energy_j == {}
        assert energy.problems == (
            "GPU 0: its counter went from 1000000 J to 12 J in 10 s: it was reset, or is broken",
        )

    def test_a_reset_that_looks_like_a_wrap_is_found_by_the_samples(self):
        energy = energy_of(window(*steady(100.0), rail=RAPL, before_j=200_000.0, after_j=900.0))
        assert energy.energy_j == {"package-0": pytest.approx(1000.0)}
        assert "its samples make 1000 J: it was reset, or began again more than once" in energy.problems[0]

    def test_a_counter_that_wrapped_twice_is_found_by_the_samples(self):
        small = Rail(name="package-0", scope="node", wraps_j=700.0)
        energy = energy_of(window(*steady(100.0), rail=small, before_j=0.0, after_j=300.0))
        assert energy.energy_j == {"package-0": pytest.approx(1000.0)}
        assert "began again more than once" in energy.problems[0]

    def test_a_wrap_that_the_samples_bear_out_is_counted(self):
        energy = energy_of(window(*steady(100.0), rail=RAPL, before_j=262_000.0, after_j=840.0))
        assert energy.energy_j == {"package-0": pytest.approx(983.3)}
        assert energy.problems == ()

    def test_a_counter_that_jumps_is_not_believed(self):
        energy = energy_of(window(before_j=0.0, after_j=11 * MOST_W))
        assert energy.energy_j == {}
        assert "no device draws that much" in energy.problems[0]

    def test_a_counter_that_stood_still_while_power_flowed_is_not_believed(self):
        energy = energy_of(window(*steady(500.0), before_j=7.0, after_j=7.0))
        assert energy.energy_j == {"GPU 0": pytest.approx(5000.0)}
        assert "it stood still" in energy.problems[0]

    @pytest.mark.parametrize("rail", [GPU, RAPL], ids=["no wrap", "wraps"])
    @pytest.mark.parametrize("count_j", [200_000.0, 10_500.0, 2300.0])
    def test_a_counter_is_not_believed_against_its_samples(self, rail, count_j):
        """Half and double 5000 J, and two ticks of 100 ms at 500 W, are 2400 J and 10,100 J."""
        energy = energy_of(window(*steady(500.0), rail=rail, before_j=7.0, after_j=7.0 + count_j))
        assert energy.energy_j == {rail.name: pytest.approx(5000.0)}
        (problem,) = energy.problems
        assert "its samples make 5000 J: it was reset, or " in problem
        assert problem.endswith("; its energy is that of its samples")

    @pytest.mark.parametrize("count_j", [10_050.0, 2450.0])
    def test_a_counter_may_be_off_by_a_factor_of_two_and_its_ticks(self, count_j):
        energy = energy_of(window(*steady(500.0), before_j=7.0, after_j=7.0 + count_j))
        assert energy.energy_j == {"GPU 0": pytest.approx(count_j)}
        assert energy.problems == ()

    def test_in_a_window_of_a_tick_a_counter_may_have_two_more(self):
        energy = energy_of(window((0.0, 500.0), (0.1, 500.0), end_s=0.1, before_j=0.0, after_j=150.0))
        assert energy.energy_j == {"GPU 0": 150.0}

    def test_samples_of_nothing_leave_a_counter_that_moved_standing(self):
        energy = energy_of(window(*steady(0.0), before_j=0.0, after_j=5000.0))
        assert energy.energy_j == {"GPU 0": 5000.0}
        assert energy.sampled_j == energy.peak_w == {}
        assert energy.problems == ("GPU 0: its samples say 0 W though its counter moved",)

    @given(
        st.floats(),
        st.floats(),
        st.none() | st.floats(),
        st.lists(st.tuples(st.floats(), st.floats())),
        st.floats(),
    )
    def test_no_reading_is_too_strange(self, before_j, after_j, wraps_j, seen, end_s):
        rail = Rail(name="strange", scope="device", wraps_j=wraps_j)
        energy = energy_of(window(*seen, rail=rail, before_j=before_j, after_j=after_j, end_s=end_s))
        figures = [*energy.energy_j.values(), *energy.sampled_j.values(), *energy.mean_w.values()]
        assert all(math.isfinite(figure) and figure >= 0 for figure in figures)
        assert energy.energy_j or energy.problems


class TestTotal:
    MODULE = Rail(name="module", scope="node", kind="module")
    GRACE = Rail(name="grace", scope="node", kind="grace", within="module")
    CPU = Rail(name="cpu rail", scope="node", kind="cpu", within="grace")
    HOPPER = Rail(name="GPU 0", scope="device", kind="gpu", within="module")
    RAILS = (MODULE, GRACE, CPU, HOPPER)
    ENERGY = Energy(energy_j={"module": 900.0, "grace": 200.0, "cpu rail": 150.0, "GPU 0": 600.0})

    def test_a_contained_rail_is_never_added_to_the_one_that_contains_it(self):
        assert total_j(self.ENERGY, self.RAILS, scope="node") == 900.0

    def test_the_gpu_is_the_device_though_the_module_contains_it(self):
        assert total_j(self.ENERGY, self.RAILS, scope="device") == 600.0

    def test_in_one_scope_the_module_stands_for_its_gpu(self):
        gpu = Rail(name="GPU 0", scope="node", within="cpu rail")
        assert total_j(self.ENERGY, (self.MODULE, self.GRACE, self.CPU, gpu), scope="node") == 900.0

    def test_a_rail_in_one_that_nobody_reads_stands_for_itself(self):
        assert total_j(self.ENERGY, (self.GRACE, self.CPU), scope="node") == 200.0

    def test_side_by_side_they_are_added(self):
        rails = [Rail(name=f"GPU {number}", scope="device") for number in range(4)]
        energy = Energy(energy_j={rail.name: 100.0 for rail in rails})
        assert total_j(energy, rails, scope="device") == 400.0
        assert total_j(energy, [*rails, *rails], scope="device") == 400.0

    def test_no_total_without_one_of_its_rails(self):
        """Three GPUs of four are not the energy of four."""
        rails = [Rail(name=f"GPU {number}", scope="device") for number in range(4)]
        assert (
            total_j(Energy(energy_j={"GPU 0": 1.0, "GPU 1": 1.0, "GPU 3": 1.0}), rails, scope="device")
            is None
        )
        assert total_j(Energy(energy_j={"grace": 200.0, "cpu rail": 150.0}), self.RAILS, scope="node") is None

    def test_a_contained_rail_that_is_missing_costs_no_total(self):
        assert total_j(Energy(energy_j={"module": 900.0}), self.RAILS, scope="node") == 900.0

    def test_no_rail_no_total(self):
        assert total_j(self.ENERGY, (), scope="node") is None
        assert total_j(self.ENERGY, (self.HOPPER,), scope="node") is None

    def test_rails_in_a_circle_end_and_are_not_added(self):
        rails = (Rail(name="a", scope="node", within="b"), Rail(name="b", scope="node", within="a"))
        assert total_j(Energy(energy_j={"a": 1.0, "b": 1.0}), rails, scope="node") is None


class TestPeakTotal:
    CPUS = tuple(Rail(name=f"package-{number}", scope="node", kind="cpu") for number in range(2))
    DRAM = Rail(name="dram-0", scope="node", kind="dram", within="package-0")

    def peak(self, *powers_w, rails=CPUS, scope="node", at_s=None):
        samples = tuple(
            PowerSample(at_s=number if at_s is None else at_s, power_w=each)
            for number, each in enumerate(powers_w)
        )
        return peak_total_w(EnergyWindow(begin_s=0.0, end_s=10.0, samples=samples, rails=rails), scope=scope)

    def test_the_highest_sum_and_not_the_sum_of_the_highest(self):
        assert (
            self.peak({"package-0": 200.0, "package-1": 90.0}, {"package-0": 80.0, "package-1": 180.0}) == 290
        )

    def test_a_contained_rail_and_one_of_another_scope_are_not_added(self):
        rails = (*self.CPUS, self.DRAM, GPU)
        sample = {"package-0": 200.0, "package-1": 90.0, "dram-0": 30.0, "GPU 0": 700.0}
        assert self.peak(sample, rails=rails) == 290
        assert self.peak(sample, rails=rails, scope="device") == 700

    def test_a_sample_that_lacks_a_rail_says_nothing_of_all(self):
        assert self.peak({"package-0": 500.0}, {"package-0": 80.0, "package-1": 90.0}) == 170
        assert self.peak({"package-0": 500.0}) is None

    @given(GARBAGE_W)
    def test_neither_does_one_of_garbage_or_outside_the_window(self, garbage):
        assert self.peak({"package-0": garbage, "package-1": 1.0}) is None
        assert self.peak({"package-0": 1.0, "package-1": 1.0}, at_s=11.0) is None

    def test_no_rails_no_peak(self):
        assert self.peak({"package-0": 500.0}, rails=()) is None
        assert self.peak({"package-0": 500.0, "package-1": 1.0}, scope="device") is None


class TestRatios:
    @given(st.floats(1e-6, 1e6), st.floats(1e-3, 1e6))
    def test_units_per_wh_and_joules_per_unit_are_inverse(self, step_j, work_per_step):
        product = units_per_wh(step_j, work_per_step) * joules_per_unit(step_j, work_per_step)
        assert product == pytest.approx(3600)

    @given(st.floats(1e-6, 1e6), st.floats(1, 1e9), st.floats(1e-3, 1e6))
    def test_an_epoch_buys_its_size(self, step_j, epoch_size, work_per_step):
        wh = wh_per_epoch(step_j, epoch_size, work_per_step)
        assert wh * units_per_wh(step_j, work_per_step) == pytest.approx(epoch_size)

    def test_by_hand(self):
        """256 images in a step of 200 J."""
        assert joules_per_unit(200.0, 256) == pytest.approx(0.78125)
        assert units_per_wh(200.0, 256) == pytest.approx(4608)
        assert wh_per_epoch(200.0, 1_281_167, 256) == pytest.approx(278.03, abs=0.01)

    def test_share_of_tdp(self):
        assert tdp_share(350.0, 700.0) == 0.5
        assert tdp_share(350.0, None) is None
        assert tdp_share(350.0, 0.0) is None
