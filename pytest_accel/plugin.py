"""pytest's hooks.

A project that merely has the plugin installed pays for reading the catalogue: everything else is imported when
the first benchmark is collected, torch when the first one runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator

import pytest

import pytest_accel.hookspecs
from pytest_accel import markers, options

pytest_plugins = ["pytest_accel.fixtures"]


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(pytest_accel.hookspecs)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    options.ignore_values_in_root(early_config)
    loaded = yield
    options.refuse_misspelt_options(parser, args)  # conftest files have declared theirs
    return loaded


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


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    markers.refuse_unknown_names(config, items)
    settings = config.stash[options.SETTINGS]
    worker = _is_worker(config)
    if not (settings.require or settings.output_files or worker or markers.needs_hardware(config, items)):
        return
    from pytest_accel.session.selection import select_platforms

    selection = select_platforms(config, items)
    if worker:
        from pytest_accel.session.worker_process import WorkerProcess

        config.pluginmanager.register(WorkerProcess(config, items), "accel-worker")
    elif not _only_lists(config):
        from pytest_accel.session.outputs import register_outputs
        from pytest_accel.session.session import register_session

        register_outputs(register_session(config, items, selection), items)


def _is_worker(config: pytest.Config) -> bool:
    return config.pluginmanager.has_plugin("accel-rank-end")


def _only_lists(config: pytest.Config) -> bool:
    return bool(config.getoption("collectonly", default=False))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Report files that were not written, as under xdist, where workers collect: old ones could be taken for new."""
    unseen = not config.pluginmanager.has_plugin("accel-outputs")
    if unseen and not _only_lists(config):
        for option, file in config.stash[options.SETTINGS].output_files:
            terminalreporter.write_line(f"--accel-{option}={file}: nothing was written", yellow=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail --accel-require where no benchmark was collected here, as under xdist."""
    config = session.config
    unseen = not (
        config.pluginmanager.has_plugin("accel-session") or _is_worker(config) or _only_lists(config)
    )
    if unseen and config.stash[options.SETTINGS].require and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
