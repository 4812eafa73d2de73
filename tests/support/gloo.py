"""Real process groups for tests: `run_ranks("module:function", 2)` calls the function on every rank, over gloo.

The function gets the open process group and returns plain JSON. Ranks are processes of their own, in one thread
each, that import only the module named; what comes back is a list by rank.
"""

import json
import os
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEADLINE_S = 180  # generous: a loaded host, two imports of torch


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_rank(program: str, rank: int, size: int, port: int) -> subprocess.Popen[str]:
    environment = os.environ | {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    command = [sys.executable, "-m", "tests.support.gloo", program]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)


def run_ranks(program: str, size: int) -> list:
    port = free_port()
    processes = [start_rank(program, rank, size, port) for rank in range(size)]
    try:
        outputs = [process.communicate(timeout=DEADLINE_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, (process, (_, errors)) in enumerate(zip(processes, outputs, strict=True)):
        assert process.returncode == 0, f"rank {rank} of {program}:\n{errors}"
    return [json.loads(written.splitlines()[-1]) for written, _ in outputs]


def main() -> None:
    import torch

    from pytest_accel.distributed.process_group import open_process_group

    module, _, function = sys.argv[1].partition(":")
    program = getattr(import_module(module), function)
    group = open_process_group(torch.device("cpu"), rendezvous_s=120, timeout_s=120)
    answer = program(group)
    group.barrier()
    group.close()
    sys.stdout.write("\n" + json.dumps(answer) + "\n")  # after what gloo itself writes there


if __name__ == "__main__":
    main()
