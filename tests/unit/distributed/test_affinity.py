"""Which CPUs and memory each rank gets; and, in real processes, that it gets them and gives them back."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.distributed import affinity
from pytest_accel.distributed.affinity import Binding, Bound, bind_rank, plan, shares
from pytest_accel.platforms.numa import DeviceAffinity, Node, Topology

GIB = 1 << 30


def host(*nodes, smt=1):
    """Nodes of these numbers of cores; siblings are numbered after all first CPUs of all cores, as on x86."""
    total = sum(nodes)
    cores = [frozenset(core + thread * total for thread in range(smt)) for core in range(total)]
    made, first = [], 0
    for index, count in enumerate(nodes):
        made.append(
            Node(index=index, cpus=frozenset().union(*cores[first : first + count]), memory_bytes=GIB)
        )
        first += count
    return Topology(nodes=tuple(made), cores=tuple(cores))


def near(topology, *nodes):
    return [DeviceAffinity(cpus=topology.nodes[index].cpus) for index in nodes]


def plan_shared(topology, places, allowed=None, **options):
    return plan(topology, allowed=[allowed or topology.cpus] * len(places), places=places, **options)


@st.composite
def hosts(draw):
    return host(
        *draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)), smt=draw(st.sampled_from([1, 2, 4]))
    )


@st.composite
def hosts_and_allowed(draw):
    topology = draw(hosts())
    return topology, draw(st.frozensets(st.sampled_from(sorted(topology.cpus)), min_size=1))


@given(hosts_and_allowed(), st.integers(1, 12))
def test_shares_are_disjoint_and_use_every_cpu(case, parts):
    topology, allowed = case
    found = shares(allowed, parts, topology)
    assert len(found) == parts
    assert sum(map(len, found)) == len(allowed)
    assert frozenset().union(*found) == allowed


@given(hosts_and_allowed(), st.integers(1, 12))
def test_shares_differ_by_one_core_at_most_and_split_none_without_need(case, parts):
    topology, allowed = case
    cores = [core & allowed for core in topology.cores if core & allowed]
    found = shares(allowed, parts, topology)
    if len(cores) >= parts:
        sizes = [sum(core <= share for core in cores) for share in found]
        assert all(core <= share or not core & share for core in cores for share in found)
    else:
        sizes = [len(share) for share in found]
    assert max(sizes) - min(sizes) <= 1


@given(hosts_and_allowed(), st.integers(1, 12))
def test_every_share_has_something_where_there_are_enough_cpus(case, parts):
    topology, allowed = case
    assert all(shares(allowed, parts, topology)) == (len(allowed) >= parts)


@given(hosts_and_allowed(), st.integers(2, 8), st.data())
def test_ranks_with_gpus_are_bound_near_them_and_apart(case, ranks, data):
    topology, allowed = case
    places = near(topology, *(data.draw(st.integers(0, len(topology.nodes) - 1)) for _ in range(ranks)))
    bindings = plan_shared(topology, places, allowed)
    for each, place in zip(bindings, places, strict=True):
        assert each.cpus <= allowed & place.cpus
        assert bool(each.cpus) != bool(each.reason)
    together = [cpu for each in bindings for cpu in each.cpus]
    assert len(together) == len(set(together))


def test_ranks_on_the_cpu_share_it_by_node_and_core():
    two_sockets = host(2, 2, smt=2)
    assert [each.cpus for each in plan_shared(two_sockets, [None] * 2)] == [{0, 1, 4, 5}, {2, 3, 6, 7}]
    assert [each.cpus for each in plan_shared(two_sockets, [None] * 4)] == [{0, 4}, {1, 5}, {2, 6}, {3, 7}]
    assert [sorted(each.memory_nodes) for each in plan_shared(two_sockets, [None] * 4)] == [
        [0],
        [0],
        [1],
        [1],
    ]


def test_ranks_on_the_cpu_are_bound_on_one_node_too():
    assert [each.cpus for each in plan_shared(host(2), [None] * 2)] == [{0}, {1}]
    assert not any(each.memory_nodes for each in plan_shared(host(2), [None] * 2))


def test_cpus_that_sysfs_does_not_show_are_shared_one_by_one():
    assert [each.cpus for each in plan_shared(Topology(), [None] * 2, frozenset(range(4)))] == [
        {0, 1},
        {2, 3},
    ]


def test_gpus_of_one_node_share_its_cpus():
    topology = host(4, 4)
    bindings = plan_shared(topology, near(topology, 0, 1, 0, 1))
    assert [sorted(each.cpus) for each in bindings] == [[0, 1], [4, 5], [2, 3], [6, 7]]
    assert [sorted(each.memory_nodes) for each in bindings] == [[0], [1], [0], [1]]


def test_a_gpu_on_a_host_of_one_node_is_not_bound():
    topology = host(8)
    assert plan_shared(topology, near(topology, 0)) == (Binding(reason="one NUMA node"),)


def test_memory_without_cpus_does_not_make_a_second_node():
    grace_hopper = host(8)
    with_hbm = Topology(
        nodes=(*grace_hopper.nodes, Node(index=1, memory_bytes=96 * GIB)), cores=grace_hopper.cores
    )
    assert plan_shared(with_hbm, near(grace_hopper, 0)) == (Binding(reason="one NUMA node"),)


def test_memory_comes_from_nodes_that_have_some_and_that_the_cgroup_allows():
    first, second = host(2, 2).nodes
    empty = Topology(nodes=(first, Node(index=1, cpus=second.cpus)))
    assert [sorted(each.memory_nodes) for each in plan_shared(empty, near(empty, 0, 1))] == [[0], []]
    both = host(2, 2)
    allowed = plan_shared(both, near(both, 0, 1), memory=frozenset({1}))
    assert [sorted(each.memory_nodes) for each in allowed] == [[], [1]]


@pytest.mark.parametrize(
    ("place", "allowed", "reason"),
    [
        (DeviceAffinity(problem="nobody knows"), range(4), "nobody knows"),
        (DeviceAffinity(), range(4), "its device's CPUs unknown"),
        (DeviceAffinity(cpus=frozenset(range(4))), range(4), "its device is near no NUMA node in particular"),
        (
            DeviceAffinity(cpus=frozenset({0, 1})),
            [2, 3],
            "its device's CPUs 0-1 are not among the allowed 2-3",
        ),
        (DeviceAffinity(cpus=frozenset({0, 1})), [], "allowed CPUs unknown"),
    ],
)
def test_what_cannot_be_bound_says_why(place, allowed, reason):
    (bound,) = plan(host(2, 2), allowed=[frozenset(allowed)], places=[place])
    assert bound == Binding(reason=reason)


def test_a_gpu_on_a_host_without_known_nodes_is_not_bound():
    (bound,) = plan(Topology(), allowed=[frozenset({0})], places=[DeviceAffinity(cpus=frozenset({0}))])
    assert bound.reason == "NUMA nodes unknown"


def test_fewer_cpus_than_ranks_binds_none():
    assert {each.reason for each in plan_shared(host(2), [None] * 3)} == {"2 CPUs for 3 ranks"}


def test_ranks_that_their_starter_bound_keep_what_they_have():
    topology = host(4, 4)
    own = [frozenset({0, 1}), frozenset({4, 5, 6})]
    assert [each.cpus for each in plan(topology, allowed=own, places=[None, None])] == own
    wrong = [frozenset({4, 5}), frozenset({0, 1})]
    assert [each.reason for each in plan(topology, allowed=wrong, places=near(topology, 0, 1))] == [
        "its device's CPUs 0-3 are not among the allowed 4-5",
        "its device's CPUs 4-7 are not among the allowed 0-1",
    ]


def test_sets_that_overlap_in_part_are_left_alone():
    sets = [frozenset({0, 1}), frozenset({1, 2})]
    bindings = plan(host(4), allowed=sets, places=[None, None])
    assert {each.reason for each in bindings} == {"the CPUs of local ranks overlap in part"}


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        (Bound(binding=Binding(reason="one NUMA node")), "none (one NUMA node)"),
        (
            Bound(binding=Binding(cpus=frozenset(range(16))), memory="memory node 0"),
            "cpus 0-15, memory node 0",
        ),
        (Bound(binding=Binding(cpus=frozenset({3}))), "cpus 3"),
    ],
)
def test_a_binding_in_words(bound, text):
    assert bound.describe() == text


def test_nothing_is_bound_when_so_asked():
    before = os.sched_getaffinity(0)
    assert bind_rank(mode="none", device_uuids=[None, None], local_rank=0).describe() == "none (as asked)"
    assert os.sched_getaffinity(0) == before


def test_a_rank_alone_on_the_cpu_keeps_all_of_it():
    bound = bind_rank(mode="auto", device_uuids=[None], local_rank=0)
    assert bound.describe() == "none (one rank on this host)"


# What follows binds: in processes of its own, so that no other test runs bound.


def run(code):
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


needs_two_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
THREADS = """
    import json, os, threading
    from pytest_accel.distributed import affinity
    stop = threading.Event()
    def start():
        thread = threading.Thread(target=stop.wait)
        thread.start()
        return thread.native_id
    def affinities():
        return [sorted(os.sched_getaffinity(thread)) for thread in threads]
    threads = [os.getpid(), start()]
"""


@needs_two_cpus
def test_all_threads_are_bound_and_restored_and_later_ones_too():
    before, bound, restored = run(
        THREADS
        + """
    before = affinities()
    bound = binding.bind_rank(mode="auto", device_uuids=[None, None], local_rank=1)
    threads.append(start())
    during = affinities()
    bound.restore()
    print(json.dumps([before, during, affinities()]))
    stop.set()
    """
    )
    assert bound[0] == bound[1] == bound[2]  # the third was started while bound
    assert set(bound[0]) < set(before[0])
    assert restored == [before[0]] * 3


@needs_two_cpus
def test_two_ranks_are_bound_apart():
    first, second = (
        run(
            f"""
            import json, os
            from pytest_accel.distributed.affinity import bind_rank
            bound = bind_rank(mode="auto", device_uuids=[None, None], local_rank={rank})
            print(json.dumps([sorted(os.sched_getaffinity(0)), bound.describe()]))
            """
        )
        for rank in range(2)
    )
    assert not set(first[0]) & set(second[0])
    assert first[1].startswith("cpus ")


def test_cpus_that_the_kernel_refuses_leave_the_process_as_it_was():
    before, after, text = run(
        THREADS
        + """
    before = affinities()
    bound = affinity.apply(binding.Binding(cpus=frozenset({1000})))
    print(json.dumps([before, affinities(), bound.describe()]))
    stop.set()
    """
    )
    assert after == before
    assert text == "none (CPUs 1000: refused by this kernel)"


MEMORY = """
    import json, os
    from pytest_accel.distributed import affinity
    try:
        before = affinity.memory_policy()
    except OSError as error:
        print(json.dumps(None))
        raise SystemExit
    cpus = frozenset(os.sched_getaffinity(0))
    bound = affinity.apply(binding.Binding(cpus=cpus, memory_nodes=frozenset({0})))
    during = affinity.memory_policy()
    policies = {line.split()[1] for line in open("/proc/self/numa_maps")} if os.path.exists("/proc/self/numa_maps") else set()
    bound.restore()
    say = lambda policy: [policy[0], sorted(policy[1])]
    print(json.dumps([say(before), say(during), say(affinity.memory_policy()), sorted(policies), bound.memory]))
"""


def test_memory_is_preferred_on_the_node_and_restored():
    answer = run(MEMORY)
    if answer is None:
        pytest.skip("get_mempolicy is not permitted here")
    before, during, after, policies, text = answer
    if text != "memory node 0":
        pytest.skip(text)
    assert during == [affinity.MPOL_PREFERRED, [0]]
    assert after == before
    assert not policies or any(policy.startswith("prefer") for policy in policies)


def test_memory_is_bound_without_libnuma_too():
    answer = run(
        """
    import ctypes
    real = ctypes.CDLL
    def without_libnuma(name, *args, **options):
        if name is not None:
            raise OSError(name)
        return real(name, *args, **options)
    ctypes.CDLL = without_libnuma
"""
        + MEMORY
    )
    if answer is None:
        pytest.skip("get_mempolicy is not permitted here, or this architecture has no numbers")
    before, during, after, _, text = answer
    if text != "memory node 0":
        pytest.skip(text)
    assert (during, after) == ([affinity.MPOL_PREFERRED, [0]], before)


@pytest.mark.parametrize(
    ("number", "why"), [("EPERM", "not permitted"), ("ENOSYS", "not offered by this kernel")]
)
def test_a_container_that_forbids_memory_policies_is_said_so(number, why):
    """As seccomp filters answer; a filter of our own would need privileges."""
    text, cpus, bound = run(
        f"""
    import errno, json, os
    from pytest_accel.distributed import affinity
    def refuse(which, *arguments):
        raise OSError(errno.{number}, "")
    affinity._memory_call = refuse
    cpus = frozenset(list(os.sched_getaffinity(0))[:1])
    bound = affinity.apply(binding.Binding(cpus=cpus, memory_nodes=frozenset({{0}})))
    print(json.dumps([bound.describe(), sorted(cpus), sorted(os.sched_getaffinity(0))]))
    bound.restore()
    """
    )
    assert text == f"cpus {cpus[0]}, memory not bound: {why}"
    assert bound == cpus
