"""What is measured, and that pytest-benchmark's own options, table and JSON go on working."""

from __future__ import annotations

import pytest

from pytest_accel.stats.run import MIN_ROUNDS


def test_json_has_the_fields_of_pytest_benchmark_and_ours(bench):
    bench.write("def test_step(accel):\n    measure(accel, configuration={'batch': 4})\n")
    bench.run("--benchmark-json=out.json", "--benchmark-save-data").assert_outcomes(passed=1)
    out = bench.json()
    assert {"machine_info", "commit_info", "benchmarks", "datetime", "version"} <= set(out)
    (benchmark,) = out["benchmarks"]
    assert {"group", "name", "fullname", "params", "param", "extra_info", "options"} <= set(benchmark)
    info, stats = bench.accel_info(), benchmark["stats"]
    assert info["schema_version"] == 1
    assert info["platform"] == "cpu"
    assert (info["unit"], info["work_unit"], info["work_per_step"]) == ("numbers/s", "numbers", 2000)
    assert info["throughput"] == pytest.approx(2000 / info["step_time_s"])
    assert info["configuration"] == {"batch": 4}
    assert set(info["environment"]) == {"identity", "context"}
    assert info["verdict"]["outcome"] == "no-baseline"
    run = info["run"]
    assert run["first_step_s"] > 0
    assert run["warmup_s"] > 0
    assert run["rounds_s"] == stats["data"]
    assert run["steps_per_round"] == stats["iterations"]
    assert len(run["rounds_s"]) == stats["rounds"] >= MIN_ROUNDS


class TestOptionsOfPytestBenchmark:
    def test_disabled_benchmark_runs_its_step_once_and_is_not_judged(self, bench):
        bench.write("def test_step(accel):\n    assert measure(accel, lambda: note('steps', 1)) is None\n")
        bench.baseline(test_step=bench.FASTER)
        result = bench.run("--benchmark-disable")
        result.assert_outcomes(passed=1)
        assert bench.path("steps").read_text() == "1\n"
        result.stdout.no_fnmatch_line("*accelerator benchmarks*")

    def test_benchmarks_or_plain_tests_are_left_out(self, bench):
        bench.write("def test_plain():\n    pass\n\ndef test_step(accel):\n    measure(accel)\n")
        for option in ("--benchmark-only", "--benchmark-skip"):
            bench.run(option).assert_outcomes(passed=1, skipped=1)

    def test_columns_and_groups_are_those_of_pytest_benchmark(self, bench):
        bench.write(
            """
            @pytest.mark.benchmark(group="sums")
            @pytest.mark.parametrize("size", [1, 2])
            def test_step(accel, size):
                measure(accel)
            """
        )
        result = bench.run("--benchmark-columns=median,rounds", "--benchmark-json=out.json")
        result.assert_outcomes(passed=2)
        result.stdout.re_match_lines(
            [r"^-+ benchmark 'sums': 2 tests", r"^Name \(time in .*\) +Median +Rounds$"]
        )
        assert bench.json()["benchmarks"][0]["group"] == "sums"
        result = bench.run("--benchmark-group-by=param:size")
        result.stdout.fnmatch_lines(["*benchmark *size=1*: 1 tests*", "*benchmark *size=2*: 1 tests*"])

    def test_saved_run_compares_with_a_later_one_on_the_same_machine(self, bench):
        """What we add to a file must not make pytest-benchmark take it for another machine's."""
        bench.benchmarks("test_step")
        bench.run("--benchmark-save=first").assert_outcomes(passed=1)
        assert list(bench.path(".benchmarks").glob("*/0001_first.json"))
        result = bench.run_apart("--benchmark-compare")
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["*test_step (0001_first)*"])
        assert "machine_info is different" not in result.stdout.str() + result.stderr.str()

    def test_further_runs_save_nothing(self, bench):
        bench.benchmarks("test_step")
        bench.baseline(test_step=bench.FASTER)
        bench.run("--benchmark-autosave").assert_outcomes(failed=1)
        assert len(list(bench.path(".benchmarks").rglob("*.json"))) == 1


class TestMistakes:
    def test_taking_accel_without_measuring_fails_with_the_remedy(self, bench):
        bench.write("def test_step(accel):\n    pass\n")
        result = bench.run()
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            ["test_step (cpu) takes `accel` but measured nothing: call accel.measure(*"]
        )

    def test_taking_accel_at_run_time_fails_with_the_remedy(self, bench):
        """Which tests are benchmarks is known from their arguments, before anything runs."""
        bench.write(
            """
            def test_step(request):
                measure(request.getfixturevalue("accel"))
            """
        )
        result = bench.run()
        result.assert_outcomes(failed=1)
        result.stdout.re_match_lines([r"^E? *.*take `?accel`? as an argument"])

    def test_measuring_twice_is_refused_before_the_second_step_runs(self, bench):
        bench.write(
            "def test_step(accel):\n    measure(accel)\n    measure(accel, lambda: note('second', 1))\n"
        )
        result = bench.run()
        result.assert_outcomes(failed=1)
        result.stdout.re_match_lines([r".*(one measurement|already|once|twice|more than one|two)"])
        assert not bench.path("second").exists()

    def test_step_that_raises_is_an_ordinary_failure(self, bench):
        bench.write(
            """
            def broken_step():
                raise RuntimeError("out of memory, say")

            def test_step(accel):
                measure(accel, broken_step)
            """
        )
        result = bench.run()
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            ["*def broken_step():*", "E *RuntimeError: out of memory, say", "test_suite.py:*: RuntimeError"]
        )
        result.stdout.no_fnmatch_line("*accelerator benchmarks*")

    def test_failure_after_measuring_is_the_failure(self, bench):
        bench.write("def test_step(accel):\n    measure(accel)\n    assert 1 == 2\n")
        bench.baseline(test_step=bench.FASTER)
        result = bench.run()
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*assert 1 == 2*"])
        assert len(bench.processes("test_step")) == 1

    def test_error_in_tear_down_is_not_lost_while_the_report_is_held(self, bench):
        bench.write(
            """
            @pytest.fixture
            def leaky():
                yield
                if not FRESH:
                    raise OSError("leaked")

            def test_step(accel, leaky):
                measure(accel)
            """
        )
        bench.baseline(test_step=bench.FASTER)
        result = bench.run()
        result.assert_outcomes(failed=1, errors=1)
        result.stdout.fnmatch_lines(["*OSError: leaked*"])

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            ("step=3", "step: 3 cannot be called*"),
            ("work=0", "work: 0 is not a positive, finite number. Count in x what one step does."),
            ("work='3'", "work: '3' is not a positive*"),
            ("work=float('nan')", "work: nan is not a positive*"),
            ("work=10**400", "work: 1000*"),
            ("unit='a\\nb'", "unit: 'a\\nb' is not a short word*"),
            ("unit=None", "unit: None is not a short word*"),
            ("configuration=[1]", "configuration: [[]1[]] is not a mapping*"),
            ("configuration={'a': float('nan')}", "configuration[[]'a'[]]: nan cannot be stored*"),
            ("configuration={'a': object()}", "configuration[[]'a'[]]: <object * cannot be stored*"),
        ],
    )
    def test_bad_argument_is_refused_before_anything_is_timed(self, bench, arguments, complaint):
        bench.write(
            f"def test_step(accel):\n    accel.measure(**dict(dict(step=lambda: 1, work=1, unit='x'), {arguments}))\n"
        )
        result = bench.run()
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines([f"accel.measure: {complaint}"])
        result.stdout.no_fnmatch_line("*accelerator benchmarks*")

    @pytest.mark.parametrize("kind", ["async def step(): raise OSError", "def step(): yield 1"])
    def test_step_whose_body_never_runs_is_refused(self, bench, kind):
        bench.write(f"{kind}\n\ndef test_step(accel):\n    measure(accel, lambda: step())\n")
        result = bench.run("-W", "ignore")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["accel.measure: step: it returns a *, whose body did not run.*"])

    def test_scalars_of_numpy_are_numbers(self, bench):
        bench.write(
            """
            import numpy

            def test_step(accel):
                measure(accel, work=numpy.prod((2, 3)), configuration={"rate": numpy.float32(0.5)})
            """
        )
        bench.run("--benchmark-json=out.json").assert_outcomes(passed=1)
        assert bench.accel_info()["configuration"] == {"rate": 0.5}
        assert bench.accel_info()["work_per_step"] == 6

    def test_check_that_raises_fails_the_benchmark(self, bench):
        bench.write(
            """
            def nothing_moved():
                raise AssertionError("parameters did not move")

            def test_step(accel):
                measure(accel, check=nothing_moved)
            """
        )
        result = bench.run()
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*parameters did not move*"])


class TestStep:
    def test_warm_up_comes_first_and_loss_is_asked_once(self, bench):
        bench.write(
            """
            def test_step(accel):
                steps, asked = [], []

                def loss():
                    asked.append(len(steps))
                    return 2.5

                found = measure(accel, lambda: steps.append(1), loss=loss)
                assert asked == [5]
                assert found.run.loss == 2.5
                assert found.run.steps_per_round * len(found.run.rounds_s) < len(steps)
            """
        )
        bench.run().assert_outcomes(passed=1)

    def test_changed_loss_is_a_note(self, bench):
        bench.write("def test_step(accel):\n    measure(accel, loss=lambda: 2.5)\n")
        bench.baseline(test_step=bench.SAME)
        content = bench.load_baseline()
        for run in content["benchmarks"]["test_suite.py::test_step"]["runs"]:
            run["loss"] = 2.0
        bench.save_baseline(content)
        result = bench.run(bench.TOLERANT)
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(
            ["note: test_step (cpu): numerics changed: loss after 5 seeded steps 2 -> 2.5"]
        )

    def test_nothing_is_written_inside_a_round(self, bench):
        """On a terminal, where progress is shown: between rounds, and never while a step runs."""
        bench.pytester.makeconftest(
            """
            import pytest

            written = []

            @pytest.fixture
            def seen(monkeypatch):
                from pytest_accel.report.terminal import Progress

                monkeypatch.setattr(Progress, "interval_s", 0.0)
                write = Progress._write
                monkeypatch.setattr(Progress, "_write", lambda self, text: (written.append(text), write(self, text)))
                return written
            """
        )
        bench.write(
            """
            def test_step(accel, seen):
                timer, counts = accel.timer, []
                call = type(timer).__call__

                class Watched(type(timer)):
                    def __call__(self):
                        if timer._inside:  # the end of a round: nothing since its beginning
                            counts.append(len(seen) - counts.pop())
                            return call(self)
                        now = call(self)
                        counts.append(len(seen))
                        return now

                timer.__class__ = Watched
                found = measure(accel)
                assert len(counts) == len(found.run.rounds_s)
                assert set(counts) == {0}
                assert len(seen) > len(counts)
            """
        )
        bench.run().assert_outcomes(passed=1)


class TestTable:
    def test_table_has_throughput_interval_warm_up_and_verdict(self, bench):
        bench.benchmarks("test_step")
        result = bench.run()
        result.stdout.re_match_lines(
            [
                r"^-+ accelerator benchmarks -+$",
                r"^benchmark +platform +throughput +unit +± +step +first step +warm-up +memory +verdict$",
                r"^test_step +cpu +[\d,.]+ +numbers/s +\d+\.\d % +\S+ [mun]?s +\S+ [mun]?s +\S+ m?s +[\d.]+ [MG]iB +NO-BASELINE$",
                r"^± is the 95 % interval of run-to-run noise\. The CPU was measured with 1 thread\.$",
            ]
        )

    def test_table_names_the_threads(self, bench):
        bench.benchmarks("test_step")
        result = bench.run("-oaccel_threads=2")
        result.stdout.fnmatch_lines(["*The CPU was measured with 2 threads."])

    @pytest.mark.parametrize(("growth", "lines"), [(1.001, 1), (1.0, 0)], ids=["drifting", "steady"])
    def test_drifting_steps_are_named_with_the_remedy(self, bench, growth, lines):
        bench.virtual_clock()
        bench.write(
            f"""
            def test_step(accel, clock):
                def step():
                    clock.step()
                    clock.step_s *= {growth}

                measure(accel, step)
            """
        )
        result = bench.run("-oaccel_warmup=2s")
        result.assert_outcomes(passed=1)
        found = [line for line in result.outlines if "steps still drifted after a warm-up of" in line]
        assert len(found) == lines
        assert all(line.startswith("note: test_step (cpu): ") and "accel_warmup" in line for line in found)

    @pytest.mark.parametrize(("step_s", "status"), [(0.0013, "failed"), (0.001, "passed")], ids=str)
    def test_loss_of_a_host_bound_step_is_noted(self, bench, step_s, status):
        """A CPU launches nothing: its steps are taken for launching here."""
        bench.virtual_clock()
        bench.write(
            f"""
            @pytest.fixture(autouse=True)
            def launching(monkeypatch):
                from pytest_accel.session.accel import Accel

                measured = Accel._metrics
                monkeypatch.setattr(
                    Accel, "_metrics", lambda self, step, timed: {{**measured(self, step, timed), "launch_s": timed.step_s}}
                )

            def test_step(accel, clock):
                clock.step_s = {step_s}
                measure(accel, clock.step)
            """
        )
        bench.virtual_baseline(test_step=0.001)
        result = bench.run()
        result.assert_outcomes(**{status: 1})
        said = [line for line in result.outlines if "busy with launching" in line]
        if status == "failed":
            assert said[0].startswith(
                "note: the host is busy with launching for 1.3 ms of a step of 1.3 ms: it sets the pace"
            )
        assert len(said) == (status == "failed")

    def test_steps_that_come_in_bursts_make_rounds_of_whole_ones(self, bench):
        bench.virtual_clock()
        bench.write(
            """
            import itertools

            def test_step(accel, clock):
                waits_s = itertools.cycle([0.001, 0.001, 0.02])

                def step():
                    clock.step_s = next(waits_s)
                    clock.step()

                measure(accel, step, burst=3)
            """
        )
        bench.run("-oaccel_warmup=1s", "--benchmark-json=out.json").assert_outcomes(passed=1)
        run = bench.accel_info()["run"]
        assert run["steps_per_round"] % 3 == 0
        assert run["rounds_s"] == pytest.approx([0.022 / 3] * len(run["rounds_s"]))

    def test_burst_of_nothing_is_refused_before_a_step_is_taken(self, bench):
        bench.write("def test_step(accel):\n    measure(accel, lambda: 1 / 0, burst=0)\n")
        result = bench.run()
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*burst: 0 is no number of steps. Write a whole number from 1 on.*"])
        result.stdout.no_fnmatch_line("*Traceback*")


def test_garbage_is_collected_in_the_warm_up_and_survivors_are_frozen(bench):
    """Half a second before the rounds would have a loader's workers run ahead, and a device cool down."""
    bench.write(
        """
        import gc

        def test_step(accel, monkeypatch):
            steps, collections, collect = [], [], gc.collect

            def noted():
                collections.append((len(steps), gc.get_freeze_count() > 1000))
                return collect()

            monkeypatch.setattr(gc, "collect", noted)
            measure(accel, step=lambda: steps.append(1))
            assert gc.get_freeze_count() < 1000
            (pilots, first_spared), (warmed_up, second_spared) = collections
            assert (pilots, first_spared) == (5, False)
            assert warmed_up > pilots
            assert second_spared
        """
    )
    bench.run_apart().assert_outcomes(passed=1)
