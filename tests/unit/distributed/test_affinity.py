"""CPU and memory affinity: plans for ranks, and binding and restoring real processes."""

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
    return plan(topology, allowed=allowed or topology.cpus, places=places, **options)


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
    bindings = plan_shared(topology, places, allowed)
    for each, place in zip(bindings, places, strict=True):
        assert each.cpus <= allowed & place.cpus
        assert bool(each.cpus) != bool(each.reason)
    together = [cpu for each in bindings for cpu in each.cpus]
    assert len(together) == len(set(together))


TWO_SOCKETS = host(2, 2, smt=2)
EIGHT = host(4, 4)
GRACE_HOPPER = Topology(
    nodes=(*host(8).nodes, Node(index=1, memory_bytes=96 * GIB)), cores=host(8).cores
)  # its HBM is a node without CPUs


@pytest.mark.parametrize(
    ("topology", "places", "cpus", "memory"),
    [
        (TWO_SOCKETS, [None] * 2, [{0, 1, 4, 5}, {2, 3, 6, 7}], [{0}, {1}]),
        (TWO_SOCKETS, [None] * 4, [{0, 4}, {1, 5}, {2, 6}, {3, 7}], [{0}, {0}, {1}, {1}]),
        (host(2), [None] * 2, [{0}, {1}], [set(), set()]),
        (EIGHT, near(EIGHT, 0, 1, 0, 1), [{0, 1}, {4, 5}, {2, 3}, {6, 7}], [{0}, {1}, {0}, {1}]),
    ],
)
def test_ranks_share_cpus_by_node_and_core(topology, places, cpus, memory):
    bindings = plan_shared(topology, places)
    assert [each.cpus for each in bindings] == cpus
    assert [each.memory_nodes for each in bindings] == memory


def test_cpus_that_sysfs_does_not_show_are_shared_one_by_one():
    bindings = plan_shared(Topology(), [None] * 2, frozenset(range(4)))
    assert [each.cpus for each in bindings] == [{0, 1}, {2, 3}]


def test_memory_comes_from_nodes_that_have_some_and_that_the_cgroup_allows():
    first, second = host(2, 2).nodes
    empty = Topology(nodes=(first, Node(index=1, cpus=second.cpus)))
    assert [sorted(each.memory_nodes) for each in plan_shared(empty, near(empty, 0, 1))] == [[0], []]
    both = host(2, 2)
    allowed = plan_shared(both, near(both, 0, 1), memory=frozenset({1}))
    assert [sorted(each.memory_nodes) for each in allowed] == [[], [1]]


AT_0_1 = DeviceAffinity(cpus=frozenset({0, 1}))


@pytest.mark.parametrize(
    ("topology", "places", "allowed", "reason"),
    [
        (host(8), near(host(8), 0), range(8), "one NUMA node"),
        (GRACE_HOPPER, near(GRACE_HOPPER, 0), range(8), "one NUMA node"),
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
    bindings = plan(topology, allowed=frozenset(allowed), places=places)
    assert bindings == (Binding(reason=reason),) * len(places)


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
def test_binding_is_described(bound, text):
    assert bound.describe() == text


@pytest.mark.parametrize(
    ("mode", "uuids", "text"),
    [("none", [None, None], "none (switched off)"), ("auto", [None], "none (one rank on this host)")],
)
def test_rank_stays_unbound(mode, uuids, text):
    before = os.sched_getaffinity(0)
    assert bind_rank(mode=mode, device_uuids=uuids, local_rank=0).describe() == text
    assert os.sched_getaffinity(0) == before


# The following tests bind processes of their own, so that no other test runs bound.


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
    bound = affinity.bind_rank(mode="auto", device_uuids=[None, None], local_rank=1)
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
    bound = affinity.apply(affinity.Binding(cpus=frozenset({1000})))
    print(json.dumps([before, affinities(), bound.describe()]))
    stop.set()
    """
    )
    assert after == before
    assert text == "none (CPUs 1000: invalid argument)"


MEMORY = """
    import json, os
    from pytest_accel.distributed import affinity
    try:
        before = affinity.memory_policy()
    except OSError as error:
        print(json.dumps(None))
        raise SystemExit
    cpus = frozenset(os.sched_getaffinity(0))
    bound = affinity.apply(affinity.Binding(cpus=cpus, memory_nodes=frozenset({0})))
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


@pytest.mark.parametrize(
    ("number", "why"), [("EPERM", "operation not permitted"), ("ENOSYS", "function not implemented")]
)
def test_refused_memory_policy_is_reported_and_cpus_stay_bound(number, why):
    """As seccomp filters answer; a filter of our own would need privileges."""
    text, cpus, bound = run(
        f"""
    import errno, json, os
    from pytest_accel.distributed import affinity
    def refuse(which, *arguments):
        raise OSError(errno.{number}, "")
    affinity._memory_call = refuse
    cpus = frozenset(list(os.sched_getaffinity(0))[:1])
    bound = affinity.apply(affinity.Binding(cpus=cpus, memory_nodes=frozenset({{0}})))
    print(json.dumps([bound.describe(), sorted(cpus), sorted(os.sched_getaffinity(0))]))
    bound.restore()
    """
    )
    assert text == f"cpus {cpus[0]}, memory not bound: {why}"
    assert bound == cpus
