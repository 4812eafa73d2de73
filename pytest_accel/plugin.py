"""pytest's hooks.

A project that merely has the plugin installed pays for reading the catalogue: everything else is imported when
the first benchmark is collected, torch when the first one runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator

import pytest

import pytest_accel.hookspecs
from pytest_accel import markers, options
from pytest_accel.stats.quantities import did_you_mean

pytest_plugins = ["pytest_accel.fixtures"]


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(pytest_accel.hookspecs)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser) -> Iterator[None]:
    options.ignore_values_in_root(early_config)
    yield  # conftest files declare theirs
    names = [option.name for option in options.OPTIONS if option.on_command_line]
    for word in parser.parse_known_and_unknown_args(early_config.invocation_params.args)[1]:
        if word.startswith("--accel-"):
            hint = did_you_mean(word.removeprefix("--accel-").partition("=")[0], names)
            raise pytest.UsageError(f"{word}: there is no such option.{hint}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    """Under torchrun or srun rank 0 is the session, and the others serve it."""
    if options.WORKER_VARIABLE in os.environ:
        status = yield
        from pytest_accel.session.worker_process import exit_worker

        exit_worker(status)
    if not options.LAUNCHER_VARIABLES & os.environ.keys():
        return (yield)
    from pytest_accel.session.launcher import hold_launcher_ranks, serve_launcher_rank

    serve_launcher_rank(config)
    return (yield from hold_launcher_ranks(config))


def pytest_configure(config: pytest.Config) -> None:
    if options.WORKER_VARIABLE in os.environ:
        from pytest_accel.session.worker_process import become_worker

        become_worker(config)
    config.stash[options.SESSION_START_S] = time.monotonic()
    config.stash[options.SETTINGS] = options.read_settings(config)
    markers.register_platforms(config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Report files that were not written, as under xdist, where workers collect: old ones could be taken for new."""
    if config.getoption("dist", "no") != "no":
        for option, file in config.stash[options.SETTINGS].output_files:
            terminalreporter.write_line(f"--accel-{option}={file}: nothing was written", yellow=True)


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    markers.refuse_unknown_names(config, items)
    settings = config.stash[options.SETTINGS]
    worker = config.pluginmanager.has_plugin("accel-rank-end")
    if not (settings.require or settings.output_files or worker or markers.needs_hardware(config, items)):
        return
    from pytest_accel.session.selection import select_platforms

    selection = select_platforms(config, items)
    if worker:
        from pytest_accel.session.worker_process import WorkerProcess

        config.pluginmanager.register(WorkerProcess(config, items), "accel-worker")
    elif not config.getoption("collectonly", default=False) and not hasattr(
        config, "workerinput"
    ):  # of xdist
        from pytest_accel.session.outputs import Outputs
        from pytest_accel.session.session import register_session

        session = register_session(config, items, selection)
        config.pluginmanager.register(Outputs(session), "accel-outputs")
