"""Comparison with other implementations: statistics, the catalogue, and small comparisons on a CPU."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.comparison.__main__ import main
from benchmarks.comparison.catalogue import ALL, COMPARISONS, UnknownComparisonError, select
from benchmarks.comparison.implementations import PEERS
from benchmarks.comparison.own_scripts import NanoGptScript, ProcessError, TimmScript, script_in, step_seconds
from benchmarks.comparison.ratios import SIDES, Times, alternate, ratio_of, schedule
from benchmarks.comparison.results import read, table

MEASURED = Path(__file__).parents[2] / "benchmarks" / "comparison" / "measured"
QUICK = ("--device=cpu", "--groups=2", "--block-seconds=0.01")


# --- statistics -------------------------------------------------------------------------------------


def test_sides_alternate_and_begin_in_turn():
    assert schedule(2) == ["ours", "peer", "peer", "ours", "peer", "ours", "ours", "peer"]


def test_linear_drift_cancels():
    now = iter(range(100))
    blocks = {"ours": lambda: 1 + 1e-3 * next(now), "peer": lambda: 1.5 * (1 + 1e-3 * next(now))}
    found = ratio_of(alternate(blocks, 4))
    assert math.isclose(found.value, 1.5, rel_tol=1e-9)
    assert math.isclose(found.low, found.high, rel_tol=1e-6)


def test_ratio_has_students_interval_over_groups():
    found = ratio_of(Times(ours_s=(1.0,) * 6, peer_s=(1.0, 1.0, 2.0, 2.0, 4.0, 4.0)))
    half = 4.303 * math.log(2) / math.sqrt(3)  # t(.975, 2)
    assert found.value == pytest.approx(2)
    assert math.log(found.high / found.value) == pytest.approx(half, rel=1e-3)
    assert found.reaches(1.0) is False  # the lower bound decides
    assert found.reaches(None) is None


@pytest.mark.parametrize(("blocks", "groups"), [(7, None), (8, 2), (11, 2), (15, 3)])
def test_interrupt_keeps_complete_groups(blocks, groups):
    taken = iter(range(blocks))

    def block() -> float:
        try:
            return 1.0 + next(taken)
        except StopIteration:
            raise KeyboardInterrupt from None

    if groups is None:
        with pytest.raises(KeyboardInterrupt):
            alternate(dict.fromkeys(SIDES, block), 5)
        return
    found = alternate(dict.fromkeys(SIDES, block), 5)
    assert (found.groups, found.cut_off) == (groups, True)


# --- catalogue --------------------------------------------------------------------------------------


def test_every_comparison_names_a_peer_and_an_existing_row():
    assert len(COMPARISONS) == len(ALL)
    for comparison in ALL:
        assert comparison.peer in PEERS
        assert comparison.goal in {1.0, None}
        tuned = (comparison.name.endswith("-tuned"), "_tuned[" in comparison.row)
        assert tuned == (comparison.options.get("tuned", False),) * 2
        file, _, test = comparison.row.partition("::")
        source = (MEASURED.parents[2] / "bench_suites" / file).read_text(encoding="utf-8")
        assert f"def {test.partition('[')[0]}(" in source, comparison.name


def test_globs_select_in_the_order_of_the_table():
    assert [each.name for each in select(["swin*", "resnet50"])] == ["resnet50", "swin_t", "swin_t-infer"]
    with pytest.raises(UnknownComparisonError, match="Did you mean 'resnet50'"):
        select(["resnet5"])


def test_list_imports_no_torch():
    code = "import sys; from benchmarks.comparison.__main__ import main; main(['--list']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "resnet50-infer" in done.stdout


@pytest.mark.parametrize("arguments", [["--device=toaster"], ["--groups=1"], ["--block-seconds=0"], ["nope"]])
def test_wrong_option_ends_with_status_2(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "error: " in capsys.readouterr().err


# --- the peers' own scripts --------------------------------------------------------------------------


def test_timm_result_of_another_batch_size_is_refused():
    result = {"train_batch_size": 128, "train_img_size": 224, "train_samples_per_sec": 1000.0}
    with pytest.raises(ProcessError, match="batches of 128"):
        step_seconds(result, COMPARISONS["resnet50"])
    assert step_seconds({**result, "train_batch_size": 256}, COMPARISONS["resnet50"]) == 0.256


def test_timm_gets_our_model_size_and_batch(tmp_path):
    words = TimmScript(tmp_path).command(COMPARISONS["resnet50"], "cuda", 40, tmp_path / "r.json")
    for option in ("--model resnet50", "--batch-size 256", "--img-size 224", "--amp-dtype bfloat16"):
        assert option in " ".join(words)


def test_nanogpt_gets_our_batch_and_its_printed_time_is_read(tmp_path):
    def run(command, folder):
        assert {"--batch_size=16", "--dtype=bfloat16", "--compile=True", "--real_data=False"} <= {*command}
        assert folder == tmp_path
        return "0/20 loss: 9.0\ntime per iteration: 33.5000ms, MFU: 40.00%\n"

    script, comparison = NanoGptScript(tmp_path), COMPARISONS["gpt-117m-nanogpt"]
    assert script.measures(comparison)
    assert not script.measures(COMPARISONS["gpt-800m-nanogpt"])  # bench.py has one shape
    assert script.step_s(comparison, "cuda", 20, run) == 0.0335
    with pytest.raises(ProcessError, match="no time per iteration"):
        script.step_s(comparison, "cuda", 20, lambda *_: "loss: nan")


def test_source_tree_is_known_by_its_files(tmp_path):
    with pytest.raises(ValueError, match=r"no source tree of .* Give the root of a checkout"):
        script_in(tmp_path)
    for file in NanoGptScript.files:
        (tmp_path / file).touch()
    assert isinstance(script_in(tmp_path), NanoGptScript)


# --- results ----------------------------------------------------------------------------------------


def test_committed_measurements_are_readable():
    lines = {
        "h200-resnet50-20261119": "1.032  1.000 to 1.065   1.0       no",
        "h200-resnet50-infer-tuned-20261118": "1.869  1.860 to 1.879   1.0      yes",
    }
    assert {file.stem for file in MEASURED.glob("*.json")} == lines.keys()
    for stem, line in lines.items():
        assert line in table(read(MEASURED / f"{stem}.json"))


@pytest.mark.rehearsal
def test_small_comparisons_run_on_a_cpu(tmp_path, capsys):
    file = tmp_path / "out.json"
    assert main([*QUICK, "resnet50", "gpt-117m", "--json", str(file)]) == 0
    assert "the ratios mean nothing" in capsys.readouterr().out
    assert [entry.name for entry in read(file).entries] == ["resnet50", "gpt-117m"]
