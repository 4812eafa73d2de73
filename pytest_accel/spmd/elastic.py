"""torch.distributed's elastic launcher as a process: `python -m pytest_accel.spmd.elastic LAUNCH`.

Told by a file what to run; leaves in `failures.json` how ranks failed, by rank, and says so by its exit status.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_accel.spmd.processes import die_with_parent, dump_no_core

REPORTED = 3  # the exit status when ranks failed; 1 is Python's own for an error of the launcher


def main(arguments: list[str]) -> int:
    told = json.loads(Path(arguments[0]).read_text())
    die_with_parent()
    if os.getppid() != told["parent"]:  # gone before the kernel was asked
        return 1
    dump_no_core()
    failures = run(told)
    if failures:
        whole = Path(told["folder"], "failures.part")
        whole.write_text(json.dumps(failures))
        whole.rename(Path(told["folder"], "failures.json"))
    return REPORTED if failures else 0


def run(told: Mapping[str, Any]) -> dict[int, int]:
    """Run the ranks to their end; the exit statuses of those that failed."""
    from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    class Folders(LogsSpecs):  # type: ignore[misc] # torch is Any here
        """Each rank's output in its own folder."""

        def reify(self, envs: Mapping[int, Mapping[str, str]]) -> LogsDest:
            folders = {rank: Path(told["folder"], str(rank)) for rank in envs}
            return LogsDest(
                stdouts={rank: str(folder / "stdout") for rank, folder in folders.items()},
                stderrs={rank: str(folder / "stderr") for rank, folder in folders.items()},
                error_files={rank: str(folder / "error.json") for rank, folder in folders.items()},
            )

        @property
        def root_log_dir(self) -> str:
            return str(told["folder"])

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=told["per_node"],
        run_id=told["gang"],
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        rdzv_configs={"timeout": told["rendezvous_s"]},
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=0.1,
        logs_specs=Folders(),
    )
    config.numa_options = None  # ranks bind themselves; torch's default differs between versions
    entrypoint, *arguments = told["command"]
    try:
        elastic_launch(config, entrypoint)(*arguments)
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}
    return {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
