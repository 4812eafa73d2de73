"""Kernel tables: what is kept, how two are aligned, and that changes sum to the loss."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.report.comparison import kernel_rows
from pytest_accel.stats.causes import disagreement, kernel_causes
from pytest_accel.stats.kernels import (
    IDLE,
    MOST_OF_OPERATION,
    MOST_ROWS,
    OTHER,
    KernelRow,
    KernelTable,
    compare,
)
from tests.support.kernels import RENAMED, row, table

OLD = table(
    10.0,
    row("matrix product", 4.0, "nvjet_a", 6),
    row("attention backward", 3.0, RENAMED[0], 2),
    row("gelu", 1.0, "vectorized"),
)


def changes(new: KernelTable, old: KernelTable = OLD):
    return {each.operation: each for each in compare(old, new, before_s=old.step_s, after_s=new.step_s).rows}


class TestAlignment:
    def test_renamed_kernel_keeps_its_place(self):
        new = table(
            12.0,
            row("matrix product", 4.0, "nvjet_a", 6),
            row("attention backward", 5.0, RENAMED[1], 2),
            row("gelu", 1.0, "vectorized"),
        )
        (first, *_), found = changes(new).values(), changes(new)
        assert set(found) == {"matrix product", "attention backward", "gelu"}
        assert first is not None
        assert first.operation == "attention backward"
        assert first.change_s == pytest.approx(2e-3)
        assert first.kernel == f"{RENAMED[0]} -> {RENAMED[1]} (other kernel)"

    def test_operation_that_appeared_and_one_that_is_gone_count_in_full(self):
        new = table(
            10.0,
            row("matrix product", 4.0, "nvjet_a", 6),
            row("attention backward", 3.0, RENAMED[0], 2),
            row("copy HtoD", 0.5),
        )
        found = changes(new)
        assert found["copy HtoD"].change_s == pytest.approx(0.5e-3)
        assert found["gelu"].change_s == pytest.approx(-1e-3)
        assert found["gelu"].kernel == "vectorized"
        assert found["gelu"].calls_text == ""  # it may be among the small ones of the other table

    def test_another_number_of_calls_is_said(self):
        found = changes(table(14.0, row("matrix product", 8.0, "nvjet_a", 12)))["matrix product"]
        assert found.calls_text == "6 -> 12"
        assert found.kernel == "nvjet_a"

    def test_small_kernel_that_the_other_side_folded_is_not_called_another_one(self):
        old = table(10.0, row("pooling", 4.0, "a"), row("pooling", 0.1, "b"))
        new = table(11.0, row("pooling", 5.0, "a"), row("pooling", 0.1, "c"))
        assert changes(new, old)["pooling"].kernel == "a"


class TestTable:
    def test_small_rows_are_folded_into_their_operation_and_the_rest_together(self):
        rows = [row("matrix product", 10 - i / 10, f"gemm_{i}") for i in range(30)]
        rows += [row(f"operation {i}", 1 - i / 100, f"kernel_{i}") for i in range(40)]
        found = table(1000.0, *rows)
        products = [each for each in found.rows if each.operation == "matrix product"]
        assert len(products) == MOST_OF_OPERATION + 1
        assert products[-1].kernel == ""
        assert sum(each.operation == OTHER for each in found.rows) == 1
        assert len(found.rows) == MOST_ROWS + 2

    def test_idle_time_is_what_is_left_of_the_measured_step(self):
        assert OLD.idle_s == pytest.approx(2e-3)

    def test_rows_that_the_profiler_made_longer_than_the_step_shrink_to_it(self):
        found = table(10.0, row("relu", 15.0), row("sum", 5.0))
        assert found.idle_s == 0
        assert [each.seconds for each in found.rows] == pytest.approx([7.5e-3, 2.5e-3])

    def test_negative_time_is_refused(self):
        with pytest.raises(ValueError, match=r"seconds: -1\.0 is not between 0 and"):
            KernelRow(operation="x", count=1, seconds=-1.0)


times = st.floats(1e-9, 1e3)
rows = st.lists(
    st.builds(
        KernelRow,
        operation=st.sampled_from([f"operation {i}" for i in range(30)]),
        kernel=st.sampled_from("abcdefgh"),
        count=st.floats(0, 1e3),
        seconds=st.floats(0, 10),
    ),
    max_size=60,
)
tables = st.builds(lambda found, step_s: KernelTable.of(found, step_s=step_s), rows, times)


class TestSums:
    @given(tables)
    def test_rows_and_idle_time_are_the_step(self, found):
        assert math.isclose(
            math.fsum([found.idle_s, *(each.seconds for each in found.rows)]), found.step_s, rel_tol=1e-9
        )

    @given(tables, tables, times, times)
    def test_changes_idle_time_and_unexplained_are_the_measured_loss(self, old, new, before_s, after_s):
        found = compare(old, new, before_s=before_s, after_s=after_s)
        whole = [found.idle.change_s, found.unexplained_s, *(each.change_s for each in found.rows)]
        scale = max(before_s, after_s, old.step_s, new.step_s)
        assert math.isclose(math.fsum(whole), after_s - before_s, rel_tol=1e-9, abs_tol=1e-9 * scale)
        assert math.isclose(
            found.unexplained_s, (after_s - before_s) - (new.step_s - old.step_s), abs_tol=1e-6 * scale
        )
        assert len(kernel_rows(found)) <= len(found.rows) + 4

    def test_calls_are_those_of_the_kernel_that_is_named(self):
        """The small kernels of an operation, folded into one row, are no kernel of it."""
        old = table(10.0, row("convolution", 4.0, "conv", 2), row("convolution", 1.0, count=16))
        new = table(20.0, row("convolution", 14.0, "slow_conv2d", 2), row("convolution", 4.0, "conv", 2))
        (change,) = compare(old, new, before_s=0.01, after_s=0.02).rows
        assert (change.kernel, change.calls) == ("slow_conv2d", (0.0, 0.0))

    @pytest.mark.parametrize("wrong", [{"step_s": 0.0}, {"idle_s": -1.0}])
    def test_impossible_tables_are_refused(self, wrong):
        with pytest.raises(ValueError, match="no times of a step"):
            replace(OLD, **wrong)


class TestCauses:
    def test_shares_are_of_the_logarithm_and_the_largest_comes_first(self):
        new = table(
            20.0,
            row("matrix product", 7.0, "nvjet_a", 6),
            row("all_reduce up to 32 MiB", 9.0),
            row("attention backward", 3.0, RENAMED[0], 2),
            row("gelu", 1.0),
        )
        first, second = kernel_causes(compare(OLD, new, before_s=0.010, after_s=0.020))
        assert (first.kind, second.kind) == ("collectives", "kernels")
        assert first.explained == pytest.approx(0.9 * math.log(2))
        assert (second.text, second.remedy) == ("matrix product 4 ms -> 7 ms a step", "nvjet_a")

    def test_idle_time_is_a_cause_of_its_own(self):
        (cause,) = kernel_causes(compare(OLD, table(15.0, *OLD.rows), before_s=0.010, after_s=0.015))
        assert cause.text.startswith("idle 2 ms -> 7 ms a step, without a kernel")
        assert compare(OLD, OLD, before_s=1, after_s=2).idle.operation == IDLE

    @pytest.mark.parametrize(
        ("came", "kind", "remedy"),
        [
            (
                row("copy DtoH", 0.1, "Memcpy DtoH", 40),
                "host",
                "40 copies to the host a step, 0 in the baseline:",
            ),
            (row("convolution layout", 5.0, "nchwToNhwcKernel", 16), "kernels", "cuDNN converts what is not"),
            (row("data loader", 5.0, "enumerate(DataLoader)"), "loader", "look at the disk"),
        ],
        ids=["copies", "layout", "batches"],
    )
    def test_new_operation_says_what_to_look_for(self, came, kind, remedy):
        new = table(15.0, *OLD.rows, came)
        (cause,) = kernel_causes(compare(OLD, new, before_s=0.010, after_s=0.015))
        assert cause.kind == kind
        assert cause.remedy.startswith(remedy)

    @pytest.mark.parametrize("after_s", [0.010, 0.009])
    def test_nothing_explains_what_was_not_lost(self, after_s):
        new = table(10.0, row("matrix product", 8.0, "nvjet_a"))
        assert kernel_causes(compare(OLD, new, before_s=0.010, after_s=after_s)) == ()

    @pytest.mark.parametrize(("step_ms", "causes"), [(16.0, 1), (16.5, 0)])
    def test_profiled_run_that_was_disturbed_explains_nothing(self, step_ms, causes):
        """Its idle time would take a loss of 5 ms in full, whatever was slow in the other runs."""
        disturbed = compare(OLD, table(step_ms, *OLD.rows), before_s=0.010, after_s=0.015)
        assert len(kernel_causes(disturbed)) == causes
        assert bool(disagreement(disturbed)) is not bool(causes)

    def test_equal_tables_explain_nothing(self):
        assert kernel_causes(compare(OLD, OLD, before_s=0.010, after_s=0.012)) == ()
