"""The command line of a rank: that of its session, less what is the session's alone."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_accel.distributed.worker import rank_arguments


def arguments_for_ranks(config: pytest.Config) -> Callable[[Path], list[str]]:
    """Of the ini file, the environment and the command line, as pytest joins them, for a rank with a folder.

    They come as arguments, so that those which write files can be left out; the ini file's own are
    therefore emptied, and pytest's cache, which knows the last failures, is put elsewhere.
    """
    in_ini = list(config.getini("addopts"))
    in_environment = shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
    given = rank_arguments([*in_ini, *in_environment, *map(str, config.invocation_params.args)])
    cached = config.pluginmanager.has_plugin("cacheprovider")

    end = given.index("--") if "--" in given else len(given)
    options, paths = given[:end], given[end:]

    def arguments(folder: Path) -> list[str]:
        cache = ["-o", f"cache_dir={folder / 'cache'}"] if cached else []
        # Last, because of two that set the same the last one counts. Output is captured into the report, and
        # written at once into the log too: of a rank that is killed, only the log is left.
        ours = ["-o", "addopts=", "-o", "log_file=", *cache, "--capture=tee-sys"]
        return [*options, *ours, *paths]

    return arguments
