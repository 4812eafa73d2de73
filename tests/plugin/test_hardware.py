"""Platforms as markers: benchmarks that this machine cannot run are skipped, or fail where they are required."""

import json
import os
import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from pytest_accel.markers import wanted_words
from tests.plugin.conftest import PLUGINS, QUICK
from tests.support.fake_nvml import FakeGpu
from tests.support.processes import finished

pytest_plugins = ("tests.support.fake_nvml",)


class TestMissing:
    def test_missing_hardware_skips_with_what_is_missing_and_builds_nothing(self, bench):
        bench.pytester.makepyfile(
            test_suite="""
            import pytest

            @pytest.fixture
            def model():
                raise MemoryError

            @pytest.mark.gh200
            def test_elsewhere(accel, model):
                pass

            @pytest.mark.gh200
            def test_kernel():  # a plain test
                assert False
            """
        )
        result = bench.run("-m", "gh200", "-rs", "--accel-record=1")
        result.assert_outcomes(skipped=2)
        result.stdout.fnmatch_lines(["nothing measured: needs 1 x GH200; this machine has * (1 test)"])
        result.stdout.fnmatch_lines(["SKIPPED [[]1] test_suite.py:*: needs 1 x GH200; this machine has *"])
        assert not bench.path("baselines").exists()

    def test_missing_hardware_fails_when_required_and_is_shown_once(self, bench):
        bench.pytester.makepyfile(
            "import pytest\n\n@pytest.mark.gh200\n@pytest.mark.parametrize('n', range(4))\ndef test_a(accel, n): ...\n\n"
            "@pytest.mark.a100x4\ndef test_b(accel): ...\n"
        )
        result = bench.run("--accel-require", "--junitxml=out.xml")
        result.assert_outcomes(errors=5)
        assert sum(line.startswith("needs ") for line in result.outlines) == 1
        assert sum(line.startswith("ERROR ") for line in result.outlines) == 1
        assert bench.junit().find("testsuite").get("errors") == "5"
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(
            [
                "needs 1 x GH200; this machine has * (--accel-require)",
                "nothing measured: needs 1 x GH200; this machine has * (4 tests)",
                "nothing measured: needs 4 x A100; this machine has * (1 test)",
            ]
        )

    @pytest.mark.parametrize("required", [(), ("--accel-require",)])
    def test_error_of_a_teardown_is_shown_where_hardware_is_missing(self, bench, required):
        bench.pytester.makepyfile(
            test_suite="""
            import pytest

            @pytest.fixture(scope="session")
            def service():
                yield
                raise RuntimeError("the service did not stop")

            def test_plain(service):
                pass

            @pytest.mark.parametrize("n", range(2))
            @pytest.mark.gh200
            def test_elsewhere(accel, n):
                pass
            """
        )
        result = bench.run(*required)
        result.stdout.fnmatch_lines(["E *RuntimeError: the service did not stop"])
        result.assert_outcomes(passed=1, errors=3 if required else 1, skipped=0 if required else 2)

    def test_expression_chooses_among_the_platforms_of_an_item(self, bench):
        bench.write("@pytest.mark.gh200\ndef test_step(accel):\n    measure(accel)\n")
        bench.run("-m", "gh200").assert_outcomes(skipped=1)
        result = bench.run("-m", "gh200 or cpu")
        result.assert_outcomes(passed=1)  # one of several platforms is enough
        result.stdout.fnmatch_lines(["test_step  * cpu *"])
        bench.run("-m", "not gh200").assert_outcomes(deselected=1)


@pytest.mark.parametrize(
    ("arguments", "fails"),
    [
        (["-k", "plain", "--accel-require"], True),
        (["--benchmark-disable", "--accel-require"], True),
        (["--accel-require"], False),
        (["-k", "plain"], False),
        (["--collect-only", "--accel-require"], False),
    ],
)
def test_session_that_measures_nothing_fails_where_measuring_is_required(bench, arguments, fails):
    bench.write("def test_plain():\n    pass\n\ndef test_step(accel):\n    measure(accel)\n")
    result = bench.run(*arguments)
    assert result.ret == (pytest.ExitCode.TESTS_FAILED if fails else pytest.ExitCode.OK)
    assert fails == any(
        line.startswith("--accel-require: this session measured nothing") for line in result.outlines
    )


class TestMarkers:
    def test_markers_are_listed_with_what_they_need(self, bench):
        result = bench.run("--markers")
        result.stdout.fnmatch_lines(
            [
                "@pytest.mark.accel(tolerance, gate, budget, warmup, timeout, bind, compile, process_group, reference): *",
                "@pytest.mark.gh200: needs *GH200*",
                "@pytest.mark.gh200x4n2: needs 4 x *GH200* on each of 2 nodes",
            ]
        )

    def test_markers_are_importable_by_name(self, bench):
        bench.pytester.makepyfile(
            """
            from pytest_accel import cpu, gh200, gh200x4n16

            @gh200
            @gh200x4n16
            def test_elsewhere(accel):
                pass

            @cpu
            def test_here():
                pass
            """
        )
        bench.run("--strict-markers").assert_outcomes(passed=1, skipped=1)

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("gh20", "*gh20*Did you mean *gh200*"),
            ("gpu", "there is no platform 'gpu' for any GPU: leave the marker out, or name *"),
            ("something_else", "cannot import name 'something_else'*"),
        ],
    )
    def test_unknown_import_is_an_import_error_with_the_nearest_name(self, bench, name, message):
        bench.pytester.makepyfile(f"from pytest_accel import {name}\n\ndef test_x(): pass")
        result = bench.run()
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines([f"*ImportError: {message}"])

    def test_own_marker_that_resembles_a_platform_is_left_alone(self, bench):
        bench.pytester.makeini("[pytest]\nmarkers =\n    h10: ten hours\n")
        bench.pytester.makepyfile("import pytest\n\n@pytest.mark.h10\ndef test_plain(): pass\n")
        bench.run("-m", "h10", "--strict-markers").assert_outcomes(passed=1)


class TestUserPlatforms:
    BOX = """
    [tool.pytest-accel.platforms.mybox]
    title = "My box"
    vendor = "nvidia"
    patterns = ["NVIDIA My Box.*"]
    memory_gb = 48
    shapes = ["x2"]
    """

    HOOK = """
    def pytest_accel_platforms(config):
        return {"mybox": {"title": "My box", "patterns": ["NVIDIA My Box.*"], "shapes": ["x2"]}}
    """

    @pytest.fixture
    def boxed(self, bench):
        bench.pytester.path.joinpath("tox.ini").unlink()
        bench.pytester.makepyfile(
            """
            import pytest

            @pytest.mark.mybox
            def test_step(accel):
                accel.measure(lambda: None, work=1, unit="nothing")
            """
        )
        return bench

    @pytest.mark.parametrize("hooked", [False, True], ids=["of pyproject.toml", "of a hook"])
    def test_platform_of_the_project_is_a_marker(self, boxed, hooked):
        if hooked:
            boxed.pytester.makeconftest(self.HOOK)
        else:
            boxed.pytester.makepyprojecttoml("[tool.pytest.ini_options]\n" + self.BOX.replace("    ", ""))
        result = boxed.run("--strict-markers", "-m", "mybox or myboxx2", "-rs")
        result.assert_outcomes(skipped=1)
        result.stdout.fnmatch_lines(["*needs 1 x My box; this machine has *"])

    @pytest.mark.parametrize(
        ("table", "complaint"),
        [
            ('patern = ["x"]', "pyproject.toml: tool.pytest-accel.platforms.mybox*patern*"),
            ("patterns = [", "*pyproject.toml: *"),
        ],
    )
    def test_bad_table_is_one_clear_error(self, boxed, table, complaint):
        # The ini file stands beside it: pytest itself would stumble over TOML that is none.
        boxed.pytester.makeini("[pytest]\n")
        boxed.pytester.makepyprojecttoml(f"[tool.pytest-accel.platforms.mybox]\n{table}\n")
        boxed.refuses(f"*{complaint}")


class TestSeveralDevices:
    def test_more_gpus_than_there_are_are_refused_with_the_reason(self, bench, fake_nvml, monkeypatch):
        environ = fake_nvml.environment(
            [
                FakeGpu(name="NVIDIA A100-SXM4-40GB", uuid=f"GPU-0000000{n}", memory_mib=40960)
                for n in range(4)
            ]
        )
        for name in ("LD_LIBRARY_PATH", "FAKE_NVML"):
            monkeypatch.setenv(name, environ[name])
        bench.pytester.makepyfile(
            "import pytest\nfrom pytest_accel import a100x8, a100x4n2\n\n@a100x4n2\n@a100x8\n"
            "def test_step(accel):\n    assert False\n"
        )
        result = bench.run_apart("-rs")
        result.assert_outcomes(skipped=1)
        result.stdout.fnmatch_lines(
            ["*needs 8 x A100 or 2 nodes of 4 x A100; this process sees 1 node with 4 x NVIDIA A100*"]
        )


class TestXdist:
    def test_benchmarks_are_refused_and_plain_tests_run(self, bench):
        bench.write(
            """
            def test_one(accel):
                measure(accel)

            def test_two(accel):
                measure(accel)

            def test_plain():
                pass
            """
        )
        bench.baseline(test_one=bench.SAME, test_two=bench.SAME)
        bench.pytester.makepyfile(test_unmarked="def test_three(accel):\n    raise AssertionError")
        result = bench.run_apart("-p", "xdist", "-n", "1")
        result.assert_outcomes(passed=1, errors=3)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(["*pytest-accel does not measure under xdist*", "*-n 0*"])
        assert not bench.processes("test_one")


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("", set()),
        ("gh200", {"gh200"}),
        ("gh200 or a100x4", {"gh200", "a100x4"}),
        ("h200 and not slow", {"h200"}),
        ("h200 and not (cpu or slow)", {"h200"}),
        ("device(name='x') and cpu", {"device", "cpu"}),
        ("(cpu", set()),
    ],
)
def test_expression_names_its_wanted_words(expression, wanted):
    assert wanted_words(expression) == wanted


POPLAR = Path(__file__).parents[1] / "support" / "poplar"
IPU_SUITE = """
import pytest

def small():
    from torch import nn
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

@pytest.mark.gc200
def test_step(train):
    train(small, data="mnist", batch_size={16: 64, 0.9: 4}, micro_batch_size=2, precision="half")
"""


class TestIpu:
    """The Poplar SDK's Python modules are on the path of the session, or some of them."""

    @pytest.fixture
    def ipu(self, pytester):
        pytester.makepyfile(test_ipu=IPU_SUITE)

        def run(*modules, arguments=()):
            folder = pytester.mkdir("poplar")
            for name in modules:
                shutil.copy(POPLAR / f"{name}.py", folder)
            path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
            own = {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
            command = [
                sys.executable,
                "-m",
                "pytest",
                *PLUGINS,
                *QUICK,
                "-m",
                "gc200",
                "-rs",
                "--accel-json=a.json",
            ]
            return finished(*command, *arguments, cwd=pytester.path, env=os.environ | own)

        return run

    def test_step_is_measured_through_poptorch(self, ipu, pytester):
        done = ipu("gcipuinfo", "poptorch", arguments=("--accel-in-process",))
        (found,) = json.loads((pytester.path / "a.json").read_text())["results"]
        assert found["status"] == "no-baseline", done.stdout
        assert found["platform"] == "gc200"
        (run,) = found["runs"]
        assert run["metrics"]["power_peak_w"] == 62.1  # of the first of two, as gcipuinfo says
        assert "launch_s" not in run["metrics"]  # a call returns when the device is done

    @pytest.mark.parametrize(
        ("modules", "reason", "arguments", "status"),
        [
            ((), "needs 1 x GC200; this machine has * not installed here: gcipuinfo and poptorch. They come with", ("--accel-require",), 1),
            (("gcipuinfo",), "gc200: not installed here: poptorch. They come with Graphcore's Poplar SDK and not from PyPI", (), 0),
        ],
    )  # fmt: skip
    def test_missing_poptorch_skips_with_what_to_install_and_fails_where_required(
        self, ipu, modules, reason, arguments, status
    ):
        done = ipu(*modules, arguments=arguments)
        assert fnmatch(done.stdout, f"*{reason}*"), done.stdout
        assert done.returncode == status
