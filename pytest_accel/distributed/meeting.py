"""Where the seats of a launcher meet: a store that all of them can find from their variables alone."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import suppress
from datetime import timedelta
from typing import Any

from pytest_accel.distributed.launch import GangError
from pytest_accel.distributed.world import Seat


def open_store(seat: Seat, rendezvous_s: float) -> Any:  # noqa: ANN401 - torch is not typed here
    """The key-value store of all seats: the launcher's own, else one that seat 0 serves."""
    from torch.distributed import DistError, TCPStore

    hosting = seat.rank == 0 and not seat.agent_store
    try:
        return TCPStore(
            reachable(seat.master_host),
            seat.master_port,
            is_master=hosting,
            wait_for_workers=False,
            timeout=timedelta(seconds=rendezvous_s),
        )
    except DistError as error:
        where = f"{seat.master_host}:{seat.master_port}"
        reason = str(error).splitlines()[0].rstrip(". ")
        if hosting:
            raise GangError(
                f"seat 0 cannot meet the other ranks at port {seat.master_port}: {reason}. "
                "Choose a free port with MASTER_PORT=... in the environment of all ranks."
            ) from None
        raise GangError(
            f"{seat.title}: nobody to meet at {where} within {rendezvous_s:g} s: {reason}"
        ) from None


def seats_key(seat: Seat) -> str:
    return f"pytest-accel/seats/{seat.attempt}"


def reachable(host: str) -> str:
    """A host by a name that resolves: Slurm may know a node by a name of its own, and tells its address."""
    with suppress(OSError):
        socket.getaddrinfo(host, None)
        return host
    with suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run(  # noqa: S603 - no shell; the name comes from Slurm itself
            ["scontrol", "show", "node", host, "--oneliner"],  # noqa: S607 - wherever Slurm is installed
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
        addresses = [word.partition("=")[2] for word in told.split() if word.startswith("NodeAddr=")]
        if addresses:
            return addresses[0]
    return host


def own_name() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
