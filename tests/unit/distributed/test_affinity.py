"""CPU affinity: plans for ranks, and binding real processes."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.distributed.worker import bind_rank, plan, shares
from pytest_accel.platforms.host import DeviceAffinity, Topology


def host(*nodes, smt=1):
    """Nodes of these numbers of cores; siblings are numbered after all first CPUs of all cores, as on x86."""
    total = sum(nodes)
    cores = [frozenset(core + thread * total for thread in range(smt)) for core in range(total)]
    made, first = [], 0
    for count in nodes:
        made.append(frozenset().union(*cores[first : first + count]))
        first += count
    return Topology(nodes=tuple(made), cores=tuple(cores))


def near(topology, *nodes):
    return [DeviceAffinity(cpus=topology.nodes[index]) for index in nodes]


def planned(topology, places, allowed=None):
    return plan(topology, allowed=topology.cpus if allowed is None else frozenset(allowed), places=places)


@st.composite
def hosts_and_allowed(draw):
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    topology = host(*sizes, smt=draw(st.sampled_from([1, 2, 4])))
    return topology, draw(st.frozensets(st.sampled_from(sorted(topology.cpus)), min_size=1))


@given(hosts_and_allowed(), st.integers(1, 12))
def test_shares_use_every_cpu_once_and_differ_by_one_core_at_most(case, parts):
    topology, allowed = case
    found = shares(allowed, parts, topology)
    assert len(found) == parts
    assert sum(map(len, found)) == len(allowed)
    assert frozenset().union(*found) == allowed
    assert all(found) == (len(allowed) >= parts)
    cores = [core & allowed for core in topology.cores if core & allowed]
    sizes = [len(share) for share in found]
    if len(cores) >= parts:  # siblings stay together
        sizes = [sum(core <= share for core in cores) for share in found]
        assert all(core <= share or not core & share for core in cores for share in found)
    assert max(sizes) - min(sizes) <= 1


@given(hosts_and_allowed(), st.integers(2, 8), st.data())
def test_ranks_with_gpus_are_bound_near_them_and_apart(case, ranks, data):
    topology, allowed = case
    places = near(topology, *(data.draw(st.integers(0, len(topology.nodes) - 1)) for _ in range(ranks)))
    found = planned(topology, places, allowed)
    bound = [(cpus, place) for cpus, place in zip(found, places, strict=True) if not isinstance(cpus, str)]
    assert all(cpus and cpus <= allowed & place.cpus for cpus, place in bound)
    together = [cpu for cpus, _ in bound for cpu in cpus]
    assert len(together) == len(set(together))


TWO_SOCKETS = host(2, 2, smt=2)
EIGHT = host(4, 4)


@pytest.mark.parametrize(
    ("topology", "places", "allowed", "cpus"),
    [
        (TWO_SOCKETS, [None] * 2, None, [{0, 1, 4, 5}, {2, 3, 6, 7}]),
        (TWO_SOCKETS, [None] * 4, None, [{0, 4}, {1, 5}, {2, 6}, {3, 7}]),
        (EIGHT, near(EIGHT, 0, 1, 0, 1), None, [{0, 1}, {4, 5}, {2, 3}, {6, 7}]),
        (Topology(), [None] * 2, range(4), [{0, 1}, {2, 3}]),  # sysfs shows nothing
    ],
)
def test_ranks_share_cpus_by_node_and_core(topology, places, allowed, cpus):
    assert planned(topology, places, allowed) == cpus


AT_0_1 = DeviceAffinity(cpus=frozenset({0, 1}))


@pytest.mark.parametrize(
    ("topology", "places", "allowed", "reason"),
    [
        (host(8), near(host(8), 0), range(8), "one NUMA node"),
        (host(2, 2), [DeviceAffinity(problem="no driver knows it")], range(4), "no driver knows it"),
        (host(2, 2), [DeviceAffinity()], range(4), "its device's CPUs unknown"),
        (
            host(2, 2),
            [DeviceAffinity(cpus=frozenset(range(4)))],
            range(4),
            "its device is near no NUMA node in particular",
        ),
        (host(2, 2), [AT_0_1], [2, 3], "its device's CPUs 0-1 are not among the allowed 2-3"),
        (host(2, 2), [AT_0_1], [], "allowed CPUs unknown"),
        (Topology(), [AT_0_1], [0], "NUMA nodes unknown"),
        (host(2), [None] * 3, range(2), "2 CPUs for 3 ranks"),
        (host(2, 2), [AT_0_1, None], range(4), "the CPUs of local ranks overlap in part"),
    ],
)
def test_rank_that_cannot_be_bound_gives_the_reason(topology, places, allowed, reason):
    assert planned(topology, places, allowed) == [reason] * len(places)


@pytest.mark.parametrize(
    ("mode", "uuids", "text"),
    [("none", [None, None], "none (switched off)"), ("auto", [None], "none (one rank on this host)")],
)
def test_rank_stays_unbound(mode, uuids, text):
    before = os.sched_getaffinity(0)
    assert bind_rank(mode=mode, device_uuids=uuids, local_rank=0) == text
    assert os.sched_getaffinity(0) == before


# The following tests bind processes of their own, so that no other test runs bound.


def run(code):
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


needs_two_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")


@needs_two_cpus
def test_all_threads_are_bound_and_two_ranks_apart():
    first, second = (
        run(
            f"""
            import json, os, threading
            from pytest_accel.distributed.worker import bind_rank
            stop = threading.Event()
            threads = [threading.Thread(target=stop.wait) for _ in range(2)]
            threads[0].start()
            text = bind_rank(mode="auto", device_uuids=[None, None], local_rank={rank})
            threads[1].start()
            pids = [os.getpid(), *(thread.native_id for thread in threads)]
            print(json.dumps([text, *(sorted(os.sched_getaffinity(pid)) for pid in pids)]))
            stop.set()
            """
        )
        for rank in range(2)
    )
    assert first[0].startswith("cpus ")
    assert first[1] == first[2] == first[3]  # the last was started while bound
    assert not set(first[1]) & set(second[1])


def test_cpus_that_the_kernel_refuses_leave_the_process_as_it_was():
    text, kept = run(
        """
        import json, os
        from pytest_accel.distributed import worker as affinity
        before = os.sched_getaffinity(0)
        affinity.plan = lambda *args, **options: [frozenset({1000})]
        text = affinity.bind_rank(mode="auto", device_uuids=["GPU-1"], local_rank=0)
        print(json.dumps([text, os.sched_getaffinity(0) == before]))
        """
    )
    assert (text, kept) == ("none (CPUs 1000: invalid argument)", True)
