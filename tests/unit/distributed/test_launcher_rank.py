"""Which rank a launcher made of this process, read from its environment alone."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.distributed.launcher_rank import (
    LauncherError,
    expand_counts,
    expand_nodes,
    launcher_rank_from,
)
from pytest_accel.options import GROUP_ID_VARIABLE, WORKER_VARIABLE

# What torchrun 2.10 set for rank 5 of two nodes of four.
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "n0",
    "MASTER_PORT": "40723",
    "TORCHELASTIC_RUN_ID": "77",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
# What srun 22.05 set for task 3 of `srun -N2 --ntasks-per-node=2`.
SRUN = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "n[0-1]",
}


def test_a_process_started_alone_has_no_seat():
    assert launcher_rank_from({}) is None


def test_torchrun_gives_a_seat():
    seat = launcher_rank_from(TORCHRUN)
    assert seat is not None
    assert (seat.rank, seat.world_size, seat.local_rank, seat.local_size) == (5, 8, 1, 4)
    assert (seat.node, seat.nodes, seat.launcher) == (1, 2, "torchrun")
    assert (seat.master_host, seat.master_port, seat.agent_store) == ("n0", 40723, True)


def test_a_torchrun_that_shares_no_store_says_so():
    seat = launcher_rank_from({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False"})
    assert seat is not None
    assert not seat.agent_store


def test_the_same_variables_set_by_hand_are_a_seat_too():
    by_hand = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    seat = launcher_rank_from({name: TORCHRUN[name] for name in by_hand})
    assert seat is not None
    assert (seat.rank, seat.node, seat.nodes, seat.agent_store) == (5, 1, 2, False)


def test_srun_gives_a_seat_and_its_first_node_is_the_master():
    seat = launcher_rank_from(SRUN)
    assert seat is not None
    assert (seat.rank, seat.world_size, seat.local_rank, seat.local_size) == (3, 4, 1, 2)
    assert (seat.node, seat.nodes, seat.launcher) == (1, 2, "srun")
    assert (seat.master_host, seat.node_names, seat.agent_store) == ("n0", ("n0", "n1"), False)
    assert 20000 <= seat.master_port <= 39999


def test_every_task_derives_the_same_port_and_the_next_step_another():
    ports = {launcher_rank_from({**SRUN, "SLURM_PROCID": rank}).master_port for rank in "0123"}
    assert len(ports) == 1
    assert launcher_rank_from({**SRUN, "SLURM_STEP_ID": "1"}).master_port not in ports
    assert launcher_rank_from({**SRUN, "SLURM_JOB_ID": "18"}).master_port not in ports


def test_a_master_that_the_user_chose_is_taken():
    seat = launcher_rank_from({**SRUN, "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"})
    assert seat is not None
    assert (seat.master_host, seat.master_port) == ("10.0.0.7", 29500)


def test_nodes_of_different_size():
    seat = launcher_rank_from({**SRUN, "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "2,1", "SLURM_PROCID": "2", "SLURM_LOCALID": "0"})  # fmt: skip
    assert seat is not None
    assert (seat.local_size, seat.nodes) == (1, 2)


def test_a_batch_script_outside_of_a_step_is_no_rank():
    inside_sbatch = {"SLURM_JOB_ID": "6", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}
    assert launcher_rank_from(inside_sbatch) is None


def test_torchrun_goes_before_the_srun_that_started_it():
    seat = launcher_rank_from({**SRUN, **TORCHRUN})
    assert seat is not None
    assert (seat.launcher, seat.world_size) == ("torchrun", 8)


def test_variables_that_a_job_script_derives_from_slurm_leave_it_srun():
    seat = launcher_rank_from({**SRUN, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"})
    assert seat is not None
    assert seat.launcher == "srun"


@pytest.mark.parametrize("variable", [WORKER_VARIABLE, GROUP_ID_VARIABLE])
@pytest.mark.parametrize("environ", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
def test_a_rank_of_ours_has_no_seat(environ, variable):
    assert launcher_rank_from({**environ, variable: "g.1"}) is None


@pytest.mark.parametrize(
    "environ",
    [
        {**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"},
        {**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_STEP_NODELIST": "n0"},
    ],
    ids=["torchrun", "srun"],
)
def test_a_world_of_one_has_no_seat(environ):
    assert launcher_rank_from(environ) is None


@pytest.mark.parametrize(
    ("environ", "variable", "value"),
    [
        (TORCHRUN, "RANK", "8"),
        (TORCHRUN, "RANK", "-1"),
        (TORCHRUN, "RANK", "two"),
        (TORCHRUN, "WORLD_SIZE", "0"),
        (TORCHRUN, "WORLD_SIZE", ""),
        (TORCHRUN, "LOCAL_RANK", "4"),
        (TORCHRUN, "LOCAL_WORLD_SIZE", "9"),
        (TORCHRUN, "GROUP_RANK", "2"),
        (TORCHRUN, "MASTER_ADDR", ""),
        (TORCHRUN, "MASTER_PORT", "70000"),
        (SRUN, "SLURM_STEP_NUM_TASKS", "²"),
        (SRUN, "SLURM_PROCID", "4"),
        (SRUN, "SLURM_LOCALID", "2"),
        (SRUN, "SLURM_NODEID", "2"),
        (SRUN, "SLURM_STEP_TASKS_PER_NODE", "2(x3)"),
        (SRUN, "SLURM_STEP_TASKS_PER_NODE", "2(x"),
        (SRUN, "SLURM_STEP_TASKS_PER_NODE", ""),
        (SRUN, "SLURM_STEP_NODELIST", "n[0-2]"),
        (SRUN, "SLURM_STEP_NODELIST", "n[0-"),
        (SRUN, "SLURM_STEP_NODELIST", "n[0-999999999]"),
        (SRUN, "SLURM_JOB_ID", "x"),
        (SRUN, "MASTER_PORT", "http"),
    ],
)
def test_nonsense_is_one_error_that_names_the_variable(environ, variable, value):
    with pytest.raises(LauncherError, match=variable) as error:
        launcher_rank_from({**environ, variable: value})
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n0", ["n0"]),
        ("n[0-1,3]", ["n0", "n1", "n3"]),
        ("gpu-a[01-02]b[3-4]", ["gpu-a01b3", "gpu-a01b4", "gpu-a02b3", "gpu-a02b4"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[8-11].cluster,login", ["n8.cluster", "n9.cluster", "n10.cluster", "n11.cluster", "login"]),
    ],
)
def test_host_lists_expand_as_scontrol_show_hostnames_does(text, names):
    assert list(expand_nodes(text)) == names


_STEM = st.text(string.ascii_lowercase + "-.", min_size=1, max_size=5)
_RANGE = st.tuples(st.integers(0, 200), st.integers(0, 5), st.integers(1, 4))


@given(st.lists(st.tuples(_STEM, st.lists(_RANGE, max_size=3)), min_size=1, max_size=4))
def test_a_host_list_names_what_it_was_folded_from(groups):
    folded, names = [], []
    for stem, ranges in groups:
        folded.append(
            stem + (f"[{','.join(f'{low:0{width}}-{low + more:0{width}}' for low, more, width in ranges)}]" if ranges else "")
        )  # fmt: skip
        numbers = [
            f"{low + step:0{max(width, len(str(low)))}}"
            for low, more, width in ranges
            for step in range(more + 1)
        ]
        names += [stem + number for number in numbers] if ranges else [stem]
    assert list(expand_nodes(",".join(folded))) == names


@given(st.text("n[]-,019 ", max_size=12))
def test_any_other_text_is_refused_or_has_no_brackets_left(text):
    try:
        names = list(expand_nodes(text))
    except ValueError:
        return
    assert not set("[],") & set("".join(names))


@given(st.lists(st.tuples(st.integers(1, 128), st.integers(1, 9)), min_size=1, max_size=6))
def test_counts_by_node_expand(groups):
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in groups)
    assert expand_counts(text) == [count for count, times in groups for _ in range(times)]
