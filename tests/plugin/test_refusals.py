"""Wrong options: refused with a remedy, before anything is measured."""

import pytest

LONG_NAME = f"{'a' * 300}.md"


def test_misspelt_setting_of_an_ini_file_names_the_nearest_and_those_of_others_are_theirs(bench):
    bench.benchmarks("test_step")
    source = "def pytest_addoption(parser):\n    parser.addini('accel_site', 'of a plugin')\n"
    bench.path("conftest.py").write_text(source)
    bench.refuses(
        "ERROR: accel_tolerence (from *): there is no such setting. Did you mean accel_tolerance[?] *",
        "-o", "accel_site=b", "-o", "accel_tolerence=5%",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--accel-slowdwon=50%", "ERROR: --accel-slowdwon: there is no such option. Did you mean --accel-slowdown[?] *"),
        ("--accel-records", "ERROR: --accel-records: there is no such option. Did you mean --accel-record[?] *"),
        ("-m gh20", "*gh20*Did you mean *gh200*"),
        ("-m not<slow<and<gh20", "*gh20*Did you mean *gh200*"),
        ("--keep-duplicates test_suite.py test_suite.py", "*two benchmarks have the id test_suite.py::test_step*"),
        ("--accel-record=1 --benchmark-disable", "*--benchmark-disable switches off what --accel-record records*"),
        ("--accel-record=1 --benchmark-skip", "*--benchmark-skip switches off what --accel-record records*"),
        ("--accel-record=1 --accel-baselines=in-the-way/here", "*in-the-way*"),
        ("--accel-data=nowhere", "*accel_data: */nowhere (from --accel-data) is not a folder.*"),
        ("--accel-json=out.md --accel-report=out.md", "ERROR: *name one file*"),
        ("--accel-json=folder.md", "ERROR: --accel-json: * is a folder. Name a file in it."),
        ("--accel-report=folder.md", "ERROR: --accel-report: * is a folder. Name a file in it."),
        (f"--accel-json={LONG_NAME}", "ERROR: --accel-json: a*: File name too long. Name another file."),
        (f"--accel-report={LONG_NAME}", "ERROR: --accel-report: a*: File name too long. Name another file."),
    ],
    ids=lambda value: value[:40],
)  # fmt: skip
def test_wrong_option_is_refused_before_anything_is_measured(bench, arguments, said):
    bench.benchmarks("test_step")
    bench.path("folder.md").mkdir()
    bench.path("in-the-way").touch()
    bench.refuses(said, *(word.replace("<", " ") for word in arguments.split()))
