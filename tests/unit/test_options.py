"""Settings: where each value came from, and what is wrong with a bad one."""

from pathlib import Path

import pytest

from pytest_accel.options import OPTIONS, Settings, baselines_root, for_item, read_settings


class FakeConfig:
    """As much of pytest's config as settings are read from."""

    def __init__(self, options=None, ini=None, inifile="pyproject.toml"):
        self._options = {f"--accel-{name}": value for name, value in (options or {}).items()}
        self._ini = self._inicfg = ini or {}
        self.inipath = Path(inifile) if inifile else None

    def getoption(self, flag, default=None):
        return self._options.get(flag, default)

    def getini(self, key):
        if key not in {option.key for option in OPTIONS}:
            raise ValueError(f"unknown configuration value: {key!r}")
        return self._ini.get(key)


def read(options=None, ini=None, environ=None, **more) -> Settings:
    return read_settings(FakeConfig(options, ini, **more), environ or {})


def refused(*arguments, **sources) -> str:
    with pytest.raises(pytest.UsageError) as caught:
        read(*arguments, **sources)
    return str(caught.value)


def test_nothing_asked_for_is_the_default():
    settings = read()
    assert settings == Settings()
    assert not settings.record
    assert settings.origin("budget_s") == "the default"


class TestPrecedence:
    def test_command_line_before_environment_before_ini_and_the_origin_is_remembered(self):
        options, ini, environ = {"budget": "3s"}, {"accel_budget": "1s"}, {"PYTEST_ACCEL_BUDGET": "2s"}
        found = [read({}, ini), read({}, ini, environ), read(options, ini, environ)]
        assert [(each.budget_s, each.origin("budget_s")) for each in found] == [
            (1, "pyproject.toml"),
            (2, "PYTEST_ACCEL_BUDGET"),
            (3, "--accel-budget"),
        ]

    def test_markers_go_before_all_and_the_closest_before_the_others(self):
        settings = read({"budget": "5s"})
        closest, farther = pytest.mark.accel(budget=1).mark, pytest.mark.accel(budget=2, warmup=3).mark
        found = for_item(settings, [closest, farther])
        assert (found.budget_s, found.warmup_s) == (1, 3)
        assert found.origin("budget_s") == "@pytest.mark.accel of a test"
        assert settings.budget_s == 5

    def test_empty_ini_value_is_none(self):
        assert read({}, {"accel_tolerance": ""}).tolerance is None

    @pytest.mark.parametrize("name", ["record", "update", "reason", "slowdown"])
    def test_what_acts_once_comes_from_the_command_line_alone(self, name):
        variable, key = f"PYTEST_ACCEL_{name.upper()}", f"accel_{name}"
        remedy = f"it is no setting. Write --accel-{name} on the command line."
        assert refused({}, {}, {variable: "1"}) == f"{variable}: {remedy}"
        assert refused({}, {key: "1"}) == f"{key}: {remedy}"


class TestErrors:
    """What, from where, what is valid."""

    def test_misspelt_variable_is_named_with_the_nearest(self):
        said = refused({}, {}, {"PYTEST_ACCEL_TOLERENCE": "5%"})
        assert said.startswith("PYTEST_ACCEL_TOLERENCE: there is no such setting. Did you mean 'tolerance'")
        assert "Did you mean" not in refused({}, {}, {"PYTEST_ACCEL_X": "1"})
        assert refused({}, {"accel_tolerence": "5%"}).startswith(
            "accel_tolerence: there is no such setting. Did"
        )
        assert read({}, {}, {"PYTEST_ACCEL_LOCKS": "/locks", "PYTEST_ACCELERATE": "1"}) == Settings()

    def test_names_the_ini_file(self):
        assert refused({}, {"accel_tolerance": "5 percent"}) == (
            "accel_tolerance: '5 percent' (from pyproject.toml) is not a fraction or a percentage. "
            "Write 0.05 or 5%."
        )

    def test_lists_what_is_valid(self):
        for repeats in ("6", "two", "9" * 5000):
            assert "is not a whole number from 1 to 5." in refused({"repeats": repeats})
        assert "is not true or false." in refused({}, {"accel_require": "perhaps"})
        assert read({}, {"accel_require": "yes"}).require
        assert not read({}, {"accel_require": "off"}).require
        assert "(from PYTEST_ACCEL_BUDGET) is not a duration." in refused({}, {}, {"PYTEST_ACCEL_BUDGET": ""})
        assert "(from --accel-tolerance) leaves no room" in refused({"tolerance": "0"})

    def test_gates_are_metrics_with_what_is_tolerated(self):
        assert read({}).gate == {}
        assert read({"gate": "throughput,energy=8%"}).gate == {"energy_per_step_j": 0.08}
        assert read({}, {"accel_gate": "energy"}).gate == {"energy_per_step_j": None}
        said = refused({"gate": "throughput,speed"})
        assert said.startswith(
            "accel_gate: 'throughput,speed' (from --accel-gate) names 'speed', which is not gated"
        )

    def test_a_mark_says_what_one_benchmark_gates(self):
        session = read({"gate": "throughput,energy"})
        found = for_item(session, [pytest.mark.accel(gate="throughput").mark], "a.py::test_x")
        assert found.gate == {}
        assert found.origin("gate") == "@pytest.mark.accel of a.py::test_x"

    @pytest.mark.parametrize("text", ["0", "11", "2.5", "bench_suites"])
    def test_number_of_runs(self, text):
        assert "is not a whole number from 1 to 10. Write --accel-record=5" in refused({"record": text})

    def test_report_formats_are_chosen_by_suffix(self):
        assert read({"report": ["a.html", "b.md,c.md"]}).reports == ("a.html", "b.md", "c.md")
        for wrong in ("a.pdf", ""):
            assert "ends in .html (a page) or .md" in refused({"report": [wrong]})

    def test_reference_shows_or_gates(self):
        shown = read({"reference": "show"})
        assert (shown.references, shown.gate_reference) == ("show", None)
        assert read({"reference": "10%"}).gate_reference == 0.1
        assert "put paths before it" in refused({"reference": "tests"})


def test_at_most_24_settings_are_options():
    shown = [option for option in OPTIONS if option.on_command_line]
    assert len(shown) <= 24
    assert not {"warmup", "threads", "lock", "bind", "rendezvous"} & {option.name for option in shown}


class TestCombinations:
    def test_update_records_five_runs_and_needs_a_reason(self):
        assert read({"update": "true", "reason": "new driver"}).record == 5
        assert read({"update": "true", "reason": "new driver", "record": "3"}).record == 3
        assert "needs a reason" in refused({"update": "true"})
        assert "needs a reason" in refused({"update": "true", "reason": "  "})

    def test_reason_goes_with_recording(self):
        assert read({"record": "1", "reason": "more runs"}).reason == "more runs"
        assert "goes with --accel-record" in refused({"reason": "why"})

    @pytest.mark.parametrize("option", [{"require": "true"}, {"json": "a.json"}, {"report": ["a.md"]}])
    def test_what_is_of_benchmarks_is_refused_under_xdist(self, option):
        config = FakeConfig(option)
        config._options["dist"] = "load"
        with pytest.raises(pytest.UsageError, match="do not run under xdist: add -n 0"):
            read_settings(config, {})

    def test_files_of_the_ini_file_are_no_error_under_xdist(self):
        config = FakeConfig({}, {"accel_json": "a.json"})
        config._options["dist"] = "load"
        assert read_settings(config, {}).json == "a.json"

    def test_slowdown_is_never_recorded(self):
        assert read({"slowdown": "10%"}).slowdown == pytest.approx(0.1)
        assert "Record without it" in refused({"slowdown": "10%", "record": "1"})


def test_root_of_baselines_is_relative_to_the_root_directory_or_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert baselines_root(Settings(), tmp_path) == tmp_path / "baselines"
    assert baselines_root(Settings(baselines="../shared"), tmp_path / "x") == tmp_path / "shared"
    assert baselines_root(Settings(baselines="/srv/baselines"), tmp_path) == Path("/srv/baselines")
    assert baselines_root(Settings(baselines="~/mine"), Path("/elsewhere")) == tmp_path / "mine"
