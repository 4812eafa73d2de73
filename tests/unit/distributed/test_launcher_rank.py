"""Launcher ranks, read from the environment of torchrun and srun."""

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

# As torchrun 2.10 sets it for rank 5 of two nodes of four.
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
# As srun 22.05 sets it for task 3 of `srun -N2 --ntasks-per-node=2`.
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


def test_torchrun_rank_is_read():
    rank = launcher_rank_from(TORCHRUN)
    assert (rank.rank, rank.world_size, rank.local_size) == (5, 8, 4)
    assert (rank.node, rank.nodes, rank.launcher) == (1, 2, "torchrun")
    assert (rank.master_host, rank.master_port, rank.agent_store) == ("n0", 40723, True)


def test_torchrun_without_an_agent_store_is_recognized():
    assert not launcher_rank_from({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False"}).agent_store


def test_torchrun_variables_set_by_hand_make_a_rank():
    by_hand = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    rank = launcher_rank_from({name: TORCHRUN[name] for name in by_hand})
    assert (rank.rank, rank.node, rank.nodes, rank.agent_store) == (5, 1, 2, False)


def test_srun_rank_is_read_and_its_first_node_is_the_master():
    rank = launcher_rank_from(SRUN)
    assert (rank.rank, rank.world_size, rank.local_size) == (3, 4, 2)
    assert (rank.node, rank.nodes, rank.launcher) == (1, 2, "srun")
    assert (rank.master_host, rank.node_names, rank.agent_store) == ("n0", ("n0", "n1"), False)
    assert 20000 <= rank.master_port < 32000


def test_every_task_derives_the_same_port_and_the_next_step_another():
    ports = {launcher_rank_from({**SRUN, "SLURM_PROCID": rank}).master_port for rank in "0123"}
    assert len(ports) == 1
    assert launcher_rank_from({**SRUN, "SLURM_STEP_ID": "1"}).master_port not in ports
    assert launcher_rank_from({**SRUN, "SLURM_JOB_ID": "18"}).master_port not in ports


def test_master_address_of_the_user_is_kept():
    rank = launcher_rank_from({**SRUN, "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"})
    assert (rank.master_host, rank.master_port) == ("10.0.0.7", 29500)


def test_nodes_may_differ_in_size():
    uneven = {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "2,1", "SLURM_PROCID": "2"}
    rank = launcher_rank_from({**SRUN, **uneven})
    assert (rank.local_size, rank.nodes) == (1, 2)


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        ({**SRUN, **TORCHRUN}, "torchrun"),  # srun started torchrun
        ({**SRUN, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, "srun"),  # set by a job script
    ],
)
def test_launcher_is_recognized_among_variables_of_both(environ, launcher):
    assert launcher_rank_from(environ).launcher == launcher


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {**TORCHRUN, WORKER_VARIABLE: "g.1"},
        {**SRUN, GROUP_ID_VARIABLE: "g.1"},
        {**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"},
        {**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_STEP_NODELIST": "n0"},
        {"SLURM_JOB_ID": "6", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"},
    ],
    ids=["alone", "our rank", "child of our rank", "torchrun of one", "srun of one", "batch script"],
)
def test_process_is_no_launcher_rank(environ):
    assert launcher_rank_from(environ) is None


@pytest.mark.parametrize(
    ("environ", "variable", "value"),
    [
        (TORCHRUN, "RANK", "8"),
        (TORCHRUN, "RANK", "-1"),
        (TORCHRUN, "RANK", "two"),
        (TORCHRUN, "WORLD_SIZE", "0"),
        (TORCHRUN, "WORLD_SIZE", ""),
        (TORCHRUN, "LOCAL_WORLD_SIZE", "9"),
        (TORCHRUN, "GROUP_RANK", "2"),
        (TORCHRUN, "MASTER_ADDR", ""),
        (TORCHRUN, "MASTER_PORT", "70000"),
        (SRUN, "SLURM_STEP_NUM_TASKS", "²"),
        (SRUN, "SLURM_PROCID", "4"),
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
def test_invalid_value_is_reported_with_its_variable(environ, variable, value):
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
def test_host_lists_expand_like_scontrol_show_hostnames(text, names):
    assert list(expand_nodes(text)) == names


_STEM = st.text(string.ascii_lowercase + "-.", min_size=1, max_size=5)
_RANGE = st.tuples(st.integers(0, 200), st.integers(0, 5), st.integers(1, 4))


@given(st.lists(st.tuples(_STEM, st.lists(_RANGE, max_size=3)), min_size=1, max_size=4))
def test_folded_host_list_expands_to_its_names(groups):
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
def test_arbitrary_text_is_refused_or_leaves_no_brackets(text):
    try:
        names = list(expand_nodes(text))
    except ValueError:
        return
    assert not set("[],") & set("".join(names))


@given(st.lists(st.tuples(st.integers(1, 128), st.integers(1, 9)), min_size=1, max_size=6))
def test_counts_by_node_expand(groups):
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in groups)
    assert expand_counts(text) == [count for count, times in groups for _ in range(times)]
