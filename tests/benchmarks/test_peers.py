"""Ours beside the peers: the pure parts by their properties, the suites' rows by what they ask for, two real contests, small."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from benchmarks.peers import cli, measuring
from benchmarks.peers.contests import ALL, CONTESTS, Contest, UnknownContestError, chosen
from benchmarks.peers.interrupts import let_through
from benchmarks.peers.printing import failures, table
from benchmarks.peers.ratios import (
    LEAST_GROUPS,
    SIDES,
    Ratio,
    Times,
    alternate,
    rate,
    ratio_of,
    steps_for,
    turns,
)
from benchmarks.peers.results import Entry, Played, Session, content
from benchmarks.peers.timm_names import TRAINED_AT, pixels
from benchmarks.peers.timm_script import LEAST_STEPS, ProcessError, Processes, play_processes, step_seconds
from benchmarks.peers.ways import WAYS, title

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "benchmarks/peers/measured"
QUICK = ("--device=cpu", "--groups=2", "--block-seconds=0.01")

seconds = st.floats(1e-4, 10)
groups_of = st.integers(2, 8)


def times(ours, peer) -> Times:
    return Times(ours_s=tuple(ours), peer_s=tuple(peer))


@st.composite
def measured(draw) -> Times:
    blocks = st.lists(seconds, min_size=2 * (groups := draw(groups_of)), max_size=2 * groups)
    return times(draw(blocks), draw(blocks))


# --- the schedule -----------------------------------------------------------------------------------


@given(groups_of)
def test_a_group_has_two_blocks_of_each_side_and_sides_begin_in_turn(groups):
    order = turns(groups)
    for group in range(groups):
        four = order[4 * group : 4 * group + 4]
        assert sorted(four) == ["ours", "ours", "peer", "peer"]
        assert four == four[::-1]
        assert four[0] == SIDES[group % 2]


@given(st.floats(0.2, 5), st.floats(-1e-3, 1e-3), groups_of)
def test_a_drift_of_the_machine_cancels(true, drift, groups):
    now = iter(range(4 * groups))
    blocks = {"ours": lambda: 1 + drift * next(now), "peer": lambda: true * (1 + drift * next(now))}
    found = ratio_of(alternate(blocks, groups))
    assert math.isclose(found.value, true, rel_tol=1e-9)
    assert math.isclose(found.low, found.high, rel_tol=1e-6)


@given(st.integers(3, 8), st.data())
def test_an_interrupt_leaves_the_groups_that_are_whole_where_they_have_an_interval(groups, data):
    taken = itertools.count(1)
    last = data.draw(st.integers(0, 4 * groups - 1))  # blocks before it

    def block() -> float:
        if (now := next(taken)) > last:
            raise KeyboardInterrupt
        return float(now)

    try:
        found = alternate(dict.fromkeys(SIDES, block), groups)
    except KeyboardInterrupt:
        found = None
    if last < 4 * LEAST_GROUPS:
        assert found is None
        return
    assert found is not None
    assert found.cut_off
    order = turns(last // 4)
    assert found.ours_s == tuple(at for at, side in enumerate(order, start=1) if side == "ours")
    assert found.peer_s == tuple(at for at, side in enumerate(order, start=1) if side == "peer")


def test_another_error_in_a_block_is_no_interrupt():
    taken = itertools.count()

    def block() -> float:
        if next(taken) == 15:
            raise RuntimeError("lost")
        return 0.1

    with pytest.raises(RuntimeError, match="lost"):
        alternate(dict.fromkeys(SIDES, block), 5)


@given(st.floats(1e-3, 100), st.floats(1e-5, 100))
def test_a_block_is_as_long_as_asked_and_no_step_longer(block_s, step_s):
    steps = steps_for(block_s, step_s)
    assert steps == 2 or (steps - 1) * step_s < block_s <= steps * step_s * (1 + 1e-12)


# --- the ratio and its interval ---------------------------------------------------------------------


@given(measured())
def test_the_interval_is_students_over_the_logarithms_of_groups(taken):
    logs = [
        math.log(sum(taken.peer_s[2 * at : 2 * at + 2]) / sum(taken.ours_s[2 * at : 2 * at + 2]))
        for at in range(taken.groups)
    ]
    found, error = ratio_of(taken), stats.sem(logs)
    assert found.low <= found.value * (1 + 1e-12)
    assert found.value <= found.high * (1 + 1e-12)
    if error > 1e-9:
        low, high = stats.t.interval(0.95, taken.groups - 1, sum(logs) / len(logs), error)
        assert math.isclose(math.log(found.low), low, abs_tol=1e-6) or found.low == 0
        assert math.isclose(math.log(found.high), high, abs_tol=1e-6)


@given(measured())
def test_the_other_way_round_it_is_the_inverse(taken):
    one, other = ratio_of(taken), ratio_of(times(taken.peer_s, taken.ours_s))
    assert math.isclose(one.value * other.value, 1, rel_tol=1e-9)
    if one.low > 1e-300 and math.isfinite(other.high):
        assert math.isclose(one.low * other.high, 1, rel_tol=1e-6)


@given(measured(), st.lists(st.floats(0.1, 10), min_size=8, max_size=8))
def test_what_slows_both_sides_of_a_group_changes_nothing(taken, factors):
    def slowed(steps_s):
        return [factors[at // 2] * each for at, each in enumerate(steps_s)]

    both = ratio_of(times(slowed(taken.ours_s), slowed(taken.peer_s)))
    assert math.isclose(both.value, ratio_of(taken).value, rel_tol=1e-9)


def test_the_interval_holds_the_truth_nineteen_times_of_twenty():
    """On 20,000 draws it was 95.1 %; of 1,500 its standard deviation is .56 %."""
    source, held = random.Random(8), 0
    for _ in range(1500):
        ours = [math.exp(source.gauss(0, 0.02)) for _ in range(10)]
        peer = [1.3 * math.exp(source.gauss(0, 0.05)) for _ in range(10)]
        found = ratio_of(times(ours, peer))
        held += found.low <= 1.3 <= found.high
    assert 0.93 < held / 1500 < 0.97


@pytest.mark.parametrize(
    ("ours", "peer"),
    [
        ((1.0, 1.0), (1.0,)),
        ((1.0,), (1.0,)),
        ((), ()),
        ((1.0, 0.0), (1.0, 1.0)),
        ((1.0, math.nan), (1.0, 1.0)),
    ],
)
def test_what_are_no_groups_is_refused(ours, peer):
    with pytest.raises(ValueError, match=r"no groups|not measured"):
        times(ours, peer)


def test_one_group_has_no_interval():
    with pytest.raises(ValueError, match="Take 2 or more"):
        ratio_of(times([1.0, 1.0], [1.0, 1.0]))


def test_a_rate_is_work_over_the_mean_step():
    assert rate(256, [0.5, 1.5]) == 256


def test_the_lower_end_decides_whether_a_goal_is_reached():
    assert Ratio(value=1.7, low=1.6, high=1.8).reaches(1.6)
    assert not Ratio(value=1.7, low=1.59, high=1.8).reaches(1.6)


# --- the contests -----------------------------------------------------------------------------------


def test_goals_are_those_of_the_issue():
    above = {contest.name: contest.goal for contest in ALL if contest.goal not in {None, 1.0}}
    assert above == {"resnet50": 1.6, "resnet50-288": 1.6, "resnet50-infer": 1.8, "wide_resnet": 3.0}


def test_what_is_not_alike_has_no_goal_and_says_so():
    unlike = [contest for contest in ALL if contest.peer_pixels]
    assert [contest.name for contest in unlike] == ["resnet50-unasked", "resnet50-infer-unasked"]
    for contest in unlike:
        assert contest.goal is None
        assert pixels(contest) == 288 != contest.choices.get("image_size", TRAINED_AT)
        assert title(contest).endswith(", at 288 pixels")
    assert [contest.goal for contest in ALL if contest.goal is None] == [None] * len(unlike)


def test_every_contest_has_a_name_a_way_and_a_small_variant():
    assert len(CONTESTS) == len(ALL)
    for contest in ALL:
        assert contest.way in WAYS
        assert contest.on("cuda") is contest
        small = contest.on("cpu")
        assert small.batch_size <= 8
        assert (small.model, small.choices) != (contest.model, contest.choices)
        assert small.choices.keys() >= contest.choices.keys()


# What the row says beside the step: how it is judged, how long an epoch is, where its loader gets its images.
OF_THE_FIXTURE = {"may_not_fit", "epoch_size", "latency", "workers", "prefetch"}
DIFFERENT = {  # from the row, and meant to be
    "resnet50-288": {"image_size": 288},
    "gpt-800m-8": {"batch_size": 8},
}


def asked_by(row: str) -> tuple[str, dict]:
    """The model and the arguments that a row of bench_suites gives its fixture."""
    asked = []
    file, _, rest = row.partition("::")
    name, _, parameters = rest.rstrip("]").partition("[")
    test = getattr(importlib.import_module(f"bench_suites.{Path(file).stem}"), name)
    values = [int(each) if each.isdecimal() else each for each in parameters.split("-") if each]
    test(lambda model, **choices: asked.append((model, choices)), *values)
    ((model, choices),) = asked
    return model, {key: value for key, value in choices.items() if key not in OF_THE_FIXTURE}


@pytest.mark.parametrize("contest", ALL, ids=lambda contest: contest.name)
def test_ours_is_the_row_of_its_suite(contest):
    model, asked = asked_by(contest.row)
    ours = {"batch_size": contest.batch_size, "precision": contest.precision, **contest.choices}
    assert contest.model == model
    if contest.name.startswith("gpt"):
        asked.pop("data", None)
    assert ours == {**asked, **DIFFERENT.get(contest.name, {})}


def test_names_and_globs_choose_each_contest_once_in_the_order_of_the_table():
    assert [each.name for each in chosen(["swin_t*", "resnet50", "resnet50"])] == [
        "resnet50",
        "swin_t",
        "swin_t-infer",
    ]
    assert chosen([]) == list(ALL)


def test_an_unknown_name_is_answered_with_near_ones(capsys):
    with pytest.raises(UnknownContestError, match="Did you mean 'segformer-1'"):
        chosen(["segformr-1"])
    with pytest.raises(SystemExit) as ended:
        cli.main(["resnet51"])
    assert ended.value.code == 2
    assert "'resnet51' is no contest. Did you mean 'resnet50'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--groups=1"], "no interval"),
        (["--groups=two"], "no whole number"),
        (["--block-seconds=0"], "no positive number"),
        (["--device=gpu0"], "is no device"),
        (["--device=cpu", "--timm-source=nowhere"], "has no benchmark.py"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_built(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_listing_imports_no_torch():
    code = "import sys; from benchmarks.peers.cli import main; main(['--list', 'gpt*']); assert 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "contest",
        *(name for name in CONTESTS if name.startswith("gpt")),
    ]


# --- what is printed and kept -----------------------------------------------------------------------

SESSION = Session(
    date="2026-11-16T00:00:00+00:00",
    device="cuda",
    device_name="NVIDIA H200",
    groups=2,
    block_seconds=1.0,
    versions={"torch": "2.11.0"},
)


def entry(name: str, ours=(0.1,) * 4, peer=(0.17,) * 4) -> Entry:
    played = Played(against="theirs", times=times(ours, peer), steps=(10, 6), work=256, unit="images")
    return Entry(contest=CONTESTS[name], played=played)


def test_the_table_says_whether_goals_are_reached():
    reached, missed = entry("resnet50"), entry("resnet50-infer")
    failed = Entry(contest=CONTESTS["gpt-800m"], error="OutOfMemory: 16 did not fit\nTry less.")
    lines = table(SESSION, [reached, missed, failed]).splitlines()
    assert lines[0].split() == [
        "contest",
        "against",
        "unit",
        "ours",
        "peer",
        "ratio",
        "95",
        "%",
        "goal",
        "reached",
    ]
    assert lines[1].split() == [
        *("resnet50", "theirs", "images/s", "2,560", "1,506", "1.700"),
        *("1.700", "to", "1.700", "1.6", "yes"),
    ]
    assert lines[2].split()[-2:] == ["1.8", "no"]
    assert not any(line.startswith("gpt-800m") for line in lines)
    assert failures([reached, failed]) == "FAILED gpt-800m: OutOfMemory: 16 did not fit\nTry less."
    assert table(SESSION, [failed]) == "Nothing was measured."


@given(measured())
def test_the_json_has_the_raw_times_from_which_the_ratio_follows(taken):
    kept = content(SESSION, [entry("resnet50", taken.ours_s, taken.peer_s)])
    (read,) = json.loads(json.dumps(kept, allow_nan=False))["contests"]
    again = ratio_of(times(read["ours"]["step_s"], read["peer"]["step_s"]))
    assert again == ratio_of(taken)
    assert read["ratio"] == again.value
    assert read["reached"] is again.reaches(1.6)
    assert read["ours"]["rate"] == rate(256, taken.ours_s)


def test_an_interval_without_end_is_kept_as_none_since_json_has_no_infinity():
    kept = content(SESSION, [entry("resnet50", peer=(1e-60, 1e-60, 1e60, 1e60))])
    (read,) = json.loads(json.dumps(kept, allow_nan=False))["contests"]
    assert (read["low"], read["high"]) == (0, None)


def test_the_json_names_what_it_ran_on_and_the_reason_of_a_failure():
    kept = content(SESSION, [Entry(contest=CONTESTS["bert-384"], error="why")])
    assert (kept["device_name"], kept["versions"], kept["date"]) == (
        "NVIDIA H200",
        {"torch": "2.11.0"},
        SESSION.date,
    )
    assert kept["contests"][0]["error"] == "why"
    assert kept["contests"][0]["choices"]["clip"] == 1.0


@pytest.mark.parametrize("file", sorted(MEASURED.glob("*.json")), ids=lambda file: file.stem)
def test_the_table_of_the_docs_is_what_the_raw_times_say(file):
    lines = {" ".join(line.split()) for line in (ROOT / "docs/peers.md").read_text("utf-8").splitlines()}
    kept = json.loads(file.read_text("utf-8"))
    for read in kept["contests"]:
        taken = times(read["ours"]["step_s"], read["peer"]["step_s"])
        assert ratio_of(taken).value == pytest.approx(read["ratio"])
        said = Played(
            against=read["against"],
            times=taken,
            steps=(read["ours"]["steps"], read["peer"]["steps"]),
            work=read["work"],
            unit=read["unit"],
        )
        row = table(SESSION, [Entry(contest=CONTESTS[read["name"]], played=said)]).splitlines()[1]
        assert " ".join(row.split()) in lines


# --- timm's own script ------------------------------------------------------------------------------


class Scripts:
    """Stands for processes: answers as they do, and remembers who was called."""

    def __init__(self, **result) -> None:
        self.called: list[str] = []
        self.commands: list[list[str]] = []
        self.result = {
            "train_batch_size": 256,
            "train_img_size": 224,
            "train_samples_per_sec": 512.0,
        } | result

    def __call__(self, command) -> str:
        self.commands.append(list(command))
        if "-m" in command:
            self.called.append("ours")
            return 'a warning\n{"step_s": 0.25, "steps": 4, "work": 256, "unit": "images"}\n'
        self.called.append("peer")
        Path(command[command.index("--results-file") + 1]).write_text(json.dumps(self.result))
        return ""


def processes(scripts: Scripts, contest: str = "resnet50") -> Processes:
    return Processes(
        contest=CONTESTS[contest], source=Path("/timm"), device_type="cuda", block_s=5.0, run=scripts
    )


def test_processes_of_both_alternate_after_one_of_each_that_fills_the_caches():
    scripts = Scripts()
    played = play_processes(processes(scripts), groups=2, say=lambda _: None)
    let_through()  # as who writes the times does: Ctrl-C is held back until then
    assert scripts.called == ["ours", "peer", *turns(2)]
    assert played.times == times([0.25] * 4, [0.5] * 4)
    assert played.steps == (4, 10)  # five seconds of half a second each
    first, *others = [
        each[each.index("--num-bench-iter") + 1] for each in scripts.commands if "-m" not in each
    ]
    assert (first, set(others)) == (str(LEAST_STEPS), {"10"})


def test_the_script_is_asked_for_the_same_model_size_precision_and_batch():
    command = processes(Scripts(), "resnet50-infer").timm_command(7, Path("out"))
    text = " ".join(command)
    assert command[1] == "/timm/benchmark.py"
    for asked in (
        "--model resnet50 --batch-size 1024 --bench inference --img-size 224",
        "--amp --amp-dtype bfloat16 --channels-last --torchcompile --no-retry --num-bench-iter 7 --device cuda",
    ):
        assert asked in text
    small = CONTESTS["swin_t"].on("cpu")
    on_cpu = Processes(contest=small, source=Path("/timm"), device_type="cpu", block_s=1.0)
    text = " ".join(on_cpu.timm_command(5, Path("out")))
    assert "--img-size 64" in text
    assert "--model-kwargs img_size=64" in text
    assert "--amp" not in text
    assert "--torchcompile" not in text


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"error": "CUDA out of memory"}, "benchmark.py: CUDA out of memory"),
        ({"model": "resnet50"}, "has no 'train_batch_size'"),
        ({"train_batch_size": 256, "train_img_size": 288, "train_samples_per_sec": 9.0}, "at 288 pixels"),
        ({"train_batch_size": 192, "train_img_size": 224, "train_samples_per_sec": 9.0}, "batches of 192"),
        ({"train_batch_size": 256, "train_img_size": 224, "train_samples_per_sec": 0.0}, "no rate"),
    ],
)
def test_a_result_of_another_comparison_is_refused(result, said):
    with pytest.raises(ProcessError, match=said):
        step_seconds(result, CONTESTS["resnet50"])


# --- real contests, small ---------------------------------------------------------------------------


@pytest.mark.rehearsal
def test_small_contests_are_played_and_one_that_fails_stops_no_other(tmp_path, capsys, monkeypatch):
    import torch

    build = measuring.peers_step

    def full(contest: Contest, device):
        if contest.way == "gpt2":
            raise torch.OutOfMemoryError("no room for it")
        return build(contest, device)

    monkeypatch.setattr(measuring, "peers_step", full)
    file = tmp_path / "deep" / "peers.json"
    names = ["wide_resnet", "gpt-117m-nanogpt", "gpt-800m"]
    assert cli.main([*names, *QUICK, "--json", str(file)]) == 1
    printed = capsys.readouterr()
    kept = {each["name"]: each for each in json.loads(file.read_text())["contests"]}
    assert set(kept) == set(names)
    for name in names[:2]:
        assert len(kept[name]["ours"]["step_s"]) == len(kept[name]["peer"]["step_s"]) == 4
        assert f"\n{name} " in printed.out
        assert kept[name]["goal"] is None  # a small one has none
    assert kept["gpt-117m-nanogpt"]["work"] == 2 * 128
    assert kept["gpt-800m"]["error"] == "OutOfMemoryError: no room for it"
    assert "FAILED gpt-800m: OutOfMemoryError: no room for it" in printed.out
    assert "first steps of nanoGPT's loop, compiled took" in printed.err


def test_compiling_alone_measures_nothing_and_one_that_fails_stops_no_other(capsys, monkeypatch):
    from benchmarks.peers import measuring

    def no_room(contest, device):
        raise RuntimeError("no room for it")

    real = measuring.our_step
    monkeypatch.setattr(
        measuring,
        "our_step",
        lambda contest, device: (no_room if "tiny" in contest.model else real)(contest, device),
    )
    monkeypatch.setattr(measuring, "alternate", None)  # which would measure
    assert cli.main(["gpt-117m", "resnet50-torchvision", *QUICK, "--compile-only"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    told = {
        line.partition(",")[0]: line.partition(": ")[2] for line in printed.err.splitlines() if line[0] == "["
    }
    assert told == {
        "[1/2] resnet50-torchvision": "both are compiled",
        "[2/2] gpt-117m": "FAILED: RuntimeError: no room for it",
    }


def options(*more: str):
    return cli.parser().parse_args([*QUICK, *more])


def test_a_missing_library_is_told_with_what_to_install(capsys):
    def play(*_):
        raise ModuleNotFoundError("No module named 'timm'")

    assert cli.compete([CONTESTS["resnet50"]], options(), play) == 1
    assert (
        "FAILED resnet50: No module named 'timm'. pip install 'pytest-accel[suites]'"
        in capsys.readouterr().out
    )


def test_what_was_measured_before_an_interrupt_is_not_lost(tmp_path, capsys):
    file = tmp_path / "peers.json"

    def play(contest, *_):
        if contest.name == "swin_t":
            raise KeyboardInterrupt
        return entry("resnet50").played

    with pytest.raises(KeyboardInterrupt):
        cli.compete(chosen(["resnet50", "swin_t"]), options(f"--json={file}"), play)
    assert "\nresnet50 " in capsys.readouterr().out
    assert len(json.loads(file.read_text())["contests"]) == 1


# --- the peers' loops do what is said of them -------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet50-torchvision", "gpt-117m-nanogpt"])
def test_a_step_of_the_peer_trains(name):
    """Parameters move and the loss of the one batch falls: a loop that forgot something would look fast."""
    import torch

    from benchmarks.peers.ways import peers_step

    losses = []
    backward = torch.Tensor.backward

    def told(self, *args, **kwargs):
        losses.append(float(self.detach()))
        return backward(self, *args, **kwargs)

    torch.manual_seed(0)
    step = peers_step(CONTESTS[name].on("cpu"), torch.device("cpu"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "backward", told)
        for _ in range(6):
            step()
    assert min(losses[1:]) < losses[0]


def test_nanogpts_model_has_the_parameters_of_gpt2():
    """124 million with positions, of its padded vocabulary and without biases."""
    import torch

    from benchmarks.peers.ways.nanogpt import LearnedPositions
    from pytest_accel.workloads.models.gpt import GPT_SHAPES

    shape = GPT_SHAPES["gpt-117m"]
    with torch.device("meta"):
        model = LearnedPositions(shape)
    count = sum(each.numel() for each in model.parameters())
    words, places = 50304 * 768, 1024 * 768
    assert count == words + places + 12 * (12 * 768**2 + 2 * 768) + 768


@settings(max_examples=20)
@given(st.integers(1, 16), st.integers(0, 10**6))
def test_torchvisions_accuracies_are_shares_of_hits(batch, seed):
    import torch

    from benchmarks.peers.ways.torchvision_loop import accuracies

    torch.manual_seed(seed)
    output, labels = torch.randn(batch, 10), torch.randint(10, (batch,))
    ranks = (output > output.gather(1, labels[:, None])).sum(1)
    best, five = accuracies(output, labels)
    assert math.isclose(float(best), 100 * float((ranks < 1).float().mean()), abs_tol=1e-3)
    assert math.isclose(float(five), 100 * float((ranks < 5).float().mean()), abs_tol=1e-3)
