"""Wrong options: refused with a remedy, before anything is measured."""

import os

import pytest

LONG_NAME = f"{'a' * 300}.md"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("-o accel_tolerence=5%", "ERROR: accel_tolerence: there is no such setting. Did you mean 'tolerance'*"),
        ("--accel-slowdwon=50%", "ERROR: --accel-slowdwon=50%: there is no such option. Did you mean 'slowdown'[?]"),
        ("--accel-json=pipe.json", "ERROR: --accel-json: */pipe.json cannot be written. *"),
        (f"--accel-json={LONG_NAME}", "ERROR: --accel-json: *aaa* cannot be written. *"),
        ("--accel-json=/dev/stdout", "ERROR: --accel-json: /dev/stdout cannot be written. *"),
        ("-m gh20", "*gh20*Did you mean *gh200*"),
        ("-m not<slow<and<gh20", "*gh20*Did you mean *gh200*"),
        ("--accel-record=1 --accel-baselines=in-the-way/here", "*in-the-way*"),
        ("--accel-data=nowhere", "*accel_data: */nowhere (from --accel-data) is not a folder.*"),
        ("--accel-report=folder.md", "ERROR: --accel-report: */folder.md cannot be written. Name a place that can be."),
        (f"--accel-report={LONG_NAME}", "ERROR: --accel-report: *aaa* cannot be written. *"),
    ],
    ids=lambda value: value[:40],
)  # fmt: skip
def test_wrong_option_is_refused_before_anything_is_measured(bench, arguments, said):
    bench.benchmarks("test_step")
    bench.path("folder.md").mkdir()
    bench.path("in-the-way").touch()
    os.mkfifo(bench.path("pipe.json"))
    bench.refuses(said, *(word.replace("<", " ") for word in arguments.split()))
