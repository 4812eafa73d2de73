"""What is measured, and that pytest-benchmark's own options, table and JSON go on working."""

import pytest

from pytest_accel.stats.run import MIN_ROUNDS


def test_json_has_the_fields_of_pytest_benchmark_and_ours(bench):
    bench.write(
        """
        def test_step(accel, benchmark):
            benchmark.extra_info["note"] = "theirs"
            measure(accel, configuration={"batch": 4})
        """
    )
    bench.run("--benchmark-json=out.json", "--benchmark-save-data").assert_outcomes(passed=1)
    out = bench.json()
    assert {"machine_info", "commit_info", "benchmarks", "datetime", "version"} <= set(out)
    (benchmark,) = out["benchmarks"]
    assert {"group", "name", "fullname", "params", "param", "extra_info", "options"} <= set(benchmark)
    assert benchmark["extra_info"]["note"] == "theirs"
    info, stats = bench.accel_info(), benchmark["stats"]
    assert info["schema_version"] == 1
    assert info["platform"] == "cpu"
    assert (info["unit"], info["work_unit"], info["work_per_step"]) == ("numbers/s", "numbers", 2000)
    assert info["throughput"] == pytest.approx(2000 / info["step_time_s"])
    assert info["configuration"] == {"batch": 4}
    assert set(info["environment"]) == {"identity", "context"}
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

    def test_saved_run_compares_with_a_later_one_on_the_same_machine(self, bench):
        """What we add to a file must not make pytest-benchmark take it for another machine's."""
        bench.benchmarks("test_step")
        bench.run("--benchmark-save=first").assert_outcomes(passed=1)
        assert list(bench.path(".benchmarks").glob("*/0001_first.json"))
        result = bench.run_apart("--benchmark-compare")
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["*test_step (0001_first)*"])
        assert "machine_info is different" not in result.stdout.str() + result.stderr.str()


MISTAKES = """
    def broken_step():
        raise RuntimeError("out of memory, say")

    async def coroutine():
        raise OSError

    def generator():
        yield 1

    def nothing_moved():
        raise AssertionError("parameters did not move")

    def test_silent(accel):
        pass

    def test_too_late(request):
        measure(request.getfixturevalue("accel"))

    def test_twice(accel):
        measure(accel)
        measure(accel, lambda: note("second", 1))

    def test_broken(accel):
        measure(accel, broken_step)

    def test_after(accel):
        measure(accel)
        assert 1 == 2

    def test_argument(accel):
        measure(accel, configuration={"a": object()})

    def test_metric(accel):
        measure(accel, metrics=lambda _: {"tflops": 1.0})

    @pytest.mark.parametrize("step", [coroutine, generator])
    def test_body(accel, step):
        measure(accel, lambda: step())

    def test_not_called(accel):
        measure(accel, lambda: broken_step)

    def test_check(accel):
        measure(accel, check=nothing_moved)
    """


def test_mistakes_fail_with_their_remedy_and_the_right_traceback(bench):
    bench.write(MISTAKES)
    bench.baseline(test_after=bench.FASTER)
    result = bench.run("-W", "ignore::RuntimeWarning")
    result.assert_outcomes(failed=11)
    assert result.stdout.str().count("Benchmark fixture was not used") == 0
    for lines in (
        ["test_silent (cpu): it takes `accel` and measured nothing: call accel.measure(*"],
        # Which tests are benchmarks is known from their arguments, before anything runs.
        ["*take `accel` as an argument*"],
        ["*a benchmark measures one step, and this one has*"],
        ["*def broken_step():*", "E *RuntimeError: out of memory, say", "test_suite.py:*: RuntimeError"],
        ["*assert 1 == 2*"],
        ["accel.measure: configuration[[]'a'[]]: <object * cannot be stored*"],
        ["accel.measure: metrics: 'tflops' is measured by pytest-accel. *"],
        ["accel.measure: step: it returns a coroutine, which did not run.*"],
        ["accel.measure: step: it returns a generator, which did not run.*"],
        ["accel.measure: step: it returns a function, which did not run.*"],
        ["*parameters did not move*"],
    ):
        result.stdout.fnmatch_lines(lines)
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_re_match_line(r".*\.py:\d+: ArgumentError")
    assert not bench.path("second").exists()
    assert len(bench.processes("test_after")) == 1


def test_error_in_tear_down_is_not_lost_while_the_report_is_held(bench):
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
    result = bench.run("--benchmark-autosave")
    result.assert_outcomes(failed=1, errors=1)
    result.stdout.fnmatch_lines(["*OSError: leaked*"])
    assert len(list(bench.path(".benchmarks").rglob("*.json"))) == 1  # of the session, none of the repeat


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
                show = Progress._show
                monkeypatch.setattr(Progress, "_show", lambda self, now: (written.append(now), show(self, now)))
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
        result = bench.run("-oaccel_threads=2")
        result.stdout.re_match_lines(
            [
                r"^-+ accelerator benchmarks -+$",
                r"^benchmark +verdict +throughput +unit +± +step +memory +platform +first step +warm-up$",
                r"^test_step +NO-BASELINE +[\d,.]+ +numbers/s +~\d+\.\d % +\S+ [mun]?s +[\d.]+ [MG]iB +cpu +\S+ [mun]?s +\S+ m?s$",
                r"^± is the 95 % interval of run-to-run noise\. ~: a single run shows none, so that it is assumed\. The CPU was measured with 2 threads\.$",
            ]
        )

    def test_drifting_steps_are_a_note(self, bench):
        bench.virtual_clock()
        bench.write(
            """
            def test_drifting(accel, clock):
                def step():
                    clock.step()
                    clock.step_s *= 1.001

                clock.step_s = 0.001
                measure(accel, step)
            """
        )
        result = bench.run("-oaccel_warmup=2s")
        (drifting,) = [line for line in result.outlines if "steps still drifted after a warm-up of" in line]
        assert drifting.startswith("note: test_drifting (cpu): ")
        assert "accel_warmup" in drifting


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
    bench.run_apart("-p", "no:tests.support.quick_sessions").assert_outcomes(passed=1)
