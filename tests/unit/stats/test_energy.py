"""Energy of a window: right, or absent with its reason."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.energy import (
    LONE_SAMPLE_S,
    EnergyWindow,
    PowerSample,
    Rail,
    energy_of,
    sampled_j,
    total_j,
    units_per_wh,
    wh_per_epoch,
)

GPU = Rail(name="GPU 0", scope="device", kind="gpu")
CPU = Rail(name="package-0", scope="node", kind="cpu")

SECONDS = st.floats(0, 1e5)
WATTS = st.floats(0, 1000)


def close(value, *, of):
    """Equal up to rounding; `of` is what was added up on the way."""
    return pytest.approx(value, rel=1e-9, abs=1e-9 * (1 + abs(of)))


def window(*samples, end_s=10.0, before_j=None, after_j=None):
    return EnergyWindow(
        begin_s=0.0,
        end_s=end_s,
        before_j={} if before_j is None else {GPU.name: before_j},
        after_j={} if after_j is None else {GPU.name: after_j},
        samples=tuple(PowerSample(at_s=at_s, power_w={GPU.name: power_w}) for at_s, power_w in samples),
        rails=(GPU,),
    )


def steady(power_w, *, until_s=10.0, period_s=0.5):
    return [(number * period_s, power_w) for number in range(int(until_s / period_s) + 1)]


profiles = st.lists(st.tuples(SECONDS, WATTS), min_size=1, max_size=12).map(
    lambda samples: sorted(samples, key=lambda sample: sample[0])
)


class TestSamples:
    @given(profiles, st.lists(SECONDS, min_size=3, max_size=3).map(sorted))
    def test_adjacent_windows_over_the_same_samples_add_up(self, profile, bounds_s):
        """Wherever the boundary falls: on a sample, between two, before the first, after the last."""
        begin_s, middle_s, end_s = bounds_s
        halves_j = sampled_j(profile, begin_s, middle_s) + sampled_j(profile, middle_s, end_s)
        assert halves_j == close(sampled_j(profile, begin_s, end_s), of=1000 * (end_s - begin_s))

    @pytest.mark.parametrize(
        ("series", "begin_s", "end_s", "energy_j"),
        [
            ([(1.0, 100.0), (3.0, 300.0)], 0.0, 4.0, 100 + 400 + 300),  # the ends are held
            ([(1.0, 100.0), (3.0, 300.0)], 1.0, 2.0, 150),
            ([(0.1, 700.0)], 0.0, 0.5, 350),
            ([(0.0, 100.0), (1.0, 100.0), (1.0, 300.0), (2.0, 300.0)], 0.0, 2.0, 400),  # a jump
            ([(0.0, 100.0), (1.0, 100.0), (1.0, 300.0), (2.0, 300.0)], 0.0, 1.0, 100),
        ],
    )
    def test_by_hand(self, series, begin_s, end_s, energy_j):
        assert sampled_j(series, begin_s, end_s) == pytest.approx(energy_j)


NO_ANSWER = "its counter did not answer at both ends of the window"
DOUBT = ", which is not plausible: it was reset, is broken, or counts something else"


class TestEnergyOf:
    """Of a counter and samples of 500 W; None: absent, with its reason."""

    @pytest.mark.parametrize(
        ("samples", "before_j", "after_j", "energy_j", "sampled", "problem"),
        [
            (steady(690.0), 1000.0, 7880.0, 6880, 6900, ""),
            (steady(690.0), None, None, 6900, 6900, ""),
            ([], 0.0, 5000.0, 5000, None, ""),
            ([], None, None, None, None, "neither a counter nor samples of its power"),
            # A counter and samples do not spoil each other.
            (steady(0.0), 0.0, 5000.0, 5000, None, "its samples say 0 W though its counter moved"),
            (steady(500.0), 5.0, None, 5000, 5000, NO_ANSWER),
            ([], None, 5.0, None, None, NO_ANSWER),
            ([], 1e6, 12.0, None, None, f"its counter went from 1000000 J to 12 J in 10 s{DOUBT}"),
            ([], 0.0, 2e6, None, None, f"its counter went from 0 J to 2000000 J in 10 s{DOUBT}"),
            # A rail that vanishes is not extrapolated; a lost reading now and then is interpolated.
            (steady(500.0, until_s=5.0), None, None, None, None, "its power was not seen for 5 s of 10 s"),
            (steady(500.0)[8:], None, None, None, None, "its power was not seen for 4 s of 10 s"),
            ([(3.0, 500.0)], None, None, None, None, "its power was not seen for 7 s of 10 s"),
            (steady(500.0)[:4] + steady(500.0)[6:20], None, None, 5000, 5000, ""),
            # Half and double 5000 J, and two ticks of 100 ms at 500 W, are 2400 J and 10,100 J.
            (steady(500.0), 7.0, 10_057.0, 10_050, 5000, ""),
            (steady(500.0), 7.0, 2457.0, 2450, 5000, ""),
        ],
    )
    def test_each_reading(self, samples, before_j, after_j, energy_j, sampled, problem):
        energy = energy_of(window(*samples, before_j=before_j, after_j=after_j))
        assert energy.energy_j == ({} if energy_j is None else {"GPU 0": pytest.approx(energy_j)})
        assert energy.sampled_j == ({} if sampled is None else {"GPU 0": pytest.approx(sampled)})
        assert energy.problems == ((f"GPU 0: {problem}",) if problem else ())
        assert energy.peak_w.keys() == energy.sampled_j.keys()

    @pytest.mark.parametrize("count_j", [200_000.0, 10_500.0, 2300.0, 0.0])
    def test_counter_is_not_believed_against_its_samples(self, count_j):
        energy = energy_of(window(*steady(500.0), before_j=7.0, after_j=7.0 + count_j))
        assert energy.energy_j == {"GPU 0": pytest.approx(5000.0)}
        (problem,) = energy.problems
        assert problem.endswith(DOUBT)

    def test_short_window_has_its_energy(self):
        """One sample will do below the period of sampling, and a counter may have two ticks more."""
        energy = energy_of(window((0.01, 500.0), end_s=LONE_SAMPLE_S))
        assert energy.energy_j == {"GPU 0": pytest.approx(500 * LONE_SAMPLE_S)}
        energy = energy_of(window((0.0, 500.0), (0.1, 500.0), end_s=0.1, before_j=0.0, after_j=150.0))
        assert energy.energy_j == {"GPU 0": 150.0}

    def test_peak_outside_the_window_is_not_its_peak(self):
        energy = energy_of(window((-0.5, 900.0), *steady(500.0), (10.5, 950.0)))
        assert energy.peak_w == {"GPU 0": 500.0}

    def test_rails_may_be_sampled_each_at_its_own_times(self):
        """Another rail's samples come after these in the tuple: that is not disorder."""
        samples = tuple(
            PowerSample(at_s=at_s, power_w={name: power_w})
            for name, power in (("GPU 0", 500.0), ("package-0", 100.0))
            for at_s, power_w in steady(power)
        )
        energy = energy_of(EnergyWindow(begin_s=0.0, end_s=10.0, samples=samples, rails=(GPU, CPU)))
        assert energy.energy_j == {"GPU 0": pytest.approx(5000.0), "package-0": pytest.approx(1000.0)}
        assert energy.problems == ()

    @given(SECONDS, SECONDS, st.lists(st.tuples(SECONDS, WATTS)).map(sorted), st.floats(0.1, 1e5))
    def test_no_reading_is_too_strange(self, before_j, after_j, seen, end_s):
        energy = energy_of(window(*seen, before_j=before_j, after_j=after_j, end_s=end_s))
        figures = [*energy.energy_j.values(), *energy.sampled_j.values()]
        assert all(math.isfinite(figure) and figure >= 0 for figure in figures)
        assert energy.energy_j or energy.problems


class TestTotal:
    MODULE = Rail(name="module", scope="node", kind="module")
    GRACE = Rail(name="grace", scope="node", kind="grace", within="module")
    CPU = Rail(name="cpu rail", scope="node", kind="cpu", within="grace")
    HOPPER = Rail(name="GPU 0", scope="device", kind="gpu", within="module")
    RAILS = (MODULE, GRACE, CPU, HOPPER)
    GPUS = tuple(Rail(name=f"GPU {number}", scope="device") for number in range(4))
    CIRCLE = (Rail(name="a", scope="node", within="b"), Rail(name="b", scope="node", within="a"))
    ENERGIES = {"module": 900.0, "grace": 200.0, "cpu rail": 150.0, "GPU 0": 600.0}  # noqa: RUF012 - read only

    @pytest.mark.parametrize(
        ("energies_j", "rails", "scope", "total"),
        [
            (ENERGIES, RAILS, "node", 900.0),  # a contained rail is never added
            (ENERGIES, RAILS, "device", 600.0),
            (ENERGIES, (*RAILS[:3], Rail(name="GPU 0", scope="node", within="cpu rail")), "node", 900.0),
            (ENERGIES, (GRACE, CPU), "node", 200.0),  # nobody reads the module
            (dict.fromkeys(("GPU 0", "GPU 1", "GPU 2", "GPU 3"), 100.0), GPUS, "device", 400.0),
            (dict.fromkeys(("GPU 0", "GPU 1", "GPU 2", "GPU 3"), 100.0), (*GPUS, *GPUS), "device", 400.0),
            (dict.fromkeys(("GPU 0", "GPU 1", "GPU 3"), 100.0), GPUS, "device", None),  # three are not four
            ({"grace": 200.0, "cpu rail": 150.0}, RAILS, "node", None),
            ({"module": 900.0}, RAILS, "node", 900.0),
            (ENERGIES, (), "node", None),
            (ENERGIES, (HOPPER,), "node", None),
            ({"a": 1.0, "b": 1.0}, CIRCLE, "node", None),
        ],
    )
    def test_every_joule_counts_once_and_none_is_missing(self, energies_j, rails, scope, total):
        assert total_j(energies_j, rails, scope=scope) == total


def test_ratios_by_hand():
    """256 images in a step of 200 J."""
    assert units_per_wh(200.0, 256) == pytest.approx(4608)
    assert wh_per_epoch(200.0, 1_281_167, 256) == pytest.approx(278.03, abs=0.01)
