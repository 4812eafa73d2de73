"""References of a benchmark: published figures, what the site expects of its own machines, and fewer devices."""

from __future__ import annotations

import string
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import product
from pathlib import Path

import pytest

from pytest_accel.options import Settings
from pytest_accel.platforms.catalogue import Catalogue, PlatformName
from pytest_accel.platforms.machine import Machine
from pytest_accel.session.case import Case
from pytest_accel.stats.comparison import figures
from pytest_accel.stats.gate import THROUGHPUT, interval
from pytest_accel.stats.measurement import Measurement
from pytest_accel.stats.quantities import si
from pytest_accel.stats.results import ReferenceFigure, ScalingPoint, scaling_figure
from pytest_accel.stats.run import baseline_key
from pytest_accel.storage import references
from pytest_accel.storage.baselines import BaselineStore

EXPECTED = "pyproject.toml"  # the source of a site's own expectations


class References:
    """All references of a session; files are read when the first benchmark needs them."""

    def __init__(self, baselines: Path, rootpath: Path, settings: Settings) -> None:
        self.baselines = baselines
        self.rootpath = rootpath
        self.settings = settings

    @cached_property
    def figures(self) -> tuple[references.Figure, ...]:
        try:
            sources = references.read_published(references.published_folder(self.baselines))
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
        return tuple(figure for source in sources for figure in source.figures)

    @cached_property
    def expectations(self) -> Mapping[str, Mapping[str, references.Expectation]]:
        try:
            return references.read_expectations(self.rootpath / EXPECTED)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None

    def of(self, item: pytest.Item, settings: Settings) -> tuple[references.Figure, ...]:
        """Return the figures that a benchmark's marker links to; refuse a link that matches none."""
        if not settings.reference:
            return ()
        link = _filled(settings.reference, item)
        found = references.linked_figures(self.figures, link)
        fixed, brace, _ = settings.reference.partition("{")  # a study need not have every parameter's row
        is_known = bool(brace) and bool(references.linked_figures(self.figures, fixed.rstrip("/")))
        if self.figures and not found and not is_known:
            hint = references.similar_links(self.figures, link)
            raise pytest.UsageError(
                f"{item.nodeid}: reference={settings.reference!r} leads to no published figure.{hint}"
            )
        return found

    def unmatched(self, node_ids: Collection[str]) -> list[str]:
        """Return expectations that match no benchmark at all, such as misspelt ones."""
        matches = references.matches_pattern
        return [name for name in self.expectations if not any(matches(name, each) for each in node_ids)]

    def refuse_unknown_platforms(self, catalogue: Catalogue) -> None:
        for name, by_platform in self.expectations.items():
            for platform in by_platform:
                if catalogue.find(platform) is None:
                    known = ", ".join(catalogue.devices)
                    raise pytest.UsageError(
                        f"{EXPECTED}: references of {name!r}: {platform!r} is no platform. Write the name of a marker, "
                        f"not of a folder of baselines: {known}, or such as a100x4."
                    )

    def look_up(self, case: Case) -> None:
        """Put references into a case, with those that it does not reach."""
        if case.measurements:
            case.references = (*self._published(case), *self._expected(case))

    def _published(self, case: Case) -> Iterator[ReferenceFigure]:
        now = case.latest
        values = figures([now.run], now.work_per_step, now.unit)
        measured = {(metric, each.unit): each.value for metric, each in values.items()}
        measured[THROUGHPUT, f"{now.unit}/s"] = case.throughput  # of all runs
        for figure in self.of(case.item, case.settings):
            if references.METRICS[figure.metric] is None:
                continue
            gate = self._gate(figure, case)
            yield ReferenceFigure(
                id=figure.id,
                source=f"{figure.id.partition('/')[0]}, {figure.table}",
                platform=figure.platform,
                metric=figure.metric,
                unit=figure.unit,
                value=figure.value,
                ratio=references.ratio_to(figure, measured),
                flags=figure.flags,
                differs=references.configuration_differences(figure, now.configuration),
                gated=gate is not None,
                shortfall=gate.shortfall(case.throughput, f"{now.unit}/s") if gate else "",
            )

    def _gate(self, figure: references.Figure, case: Case) -> references.Expectation | None:
        """Return the expectation of a published throughput of this platform, where --accel-reference gates."""
        tolerance = self.settings.gate_reference
        if tolerance is None or figure.platform != str(case.platform) or figure.metric != THROUGHPUT:
            return None
        return references.expectation_of(figure, tolerance)

    def _expected(self, case: Case) -> Iterator[ReferenceFigure]:
        expected = references.expected_for(self.expectations, case.node_id, str(case.platform))
        if expected is None:
            return
        unit = f"{case.latest.unit}/s"
        yield ReferenceFigure(
            id=expected.origin,
            source=EXPECTED,
            platform=str(case.platform),
            metric=THROUGHPUT,
            unit=expected.unit,
            value=expected.value,
            ratio=case.throughput / expected.value if unit == expected.unit else None,
            expected=True,
            gated=True,
            shortfall=expected.shortfall(case.throughput, unit),
        )


def _filled(template: str, item: pytest.Item) -> str:
    """Return a link such as `olivia/single/{variant}` with the parameters of an item."""
    callspec = getattr(item, "callspec", None)
    parameters = callspec.params if callspec else {}
    try:
        wanted = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
        return template.format_map({name: parameters[name] for name in wanted})
    except (KeyError, ValueError) as error:
        known = ", ".join(sorted(parameters)) or "none"
        raise pytest.UsageError(
            f"{item.nodeid}: reference={template!r}: {error} is no parameter of it. Its parameters: {known}."
        ) from None


def reference_line(label: str, figure: ReferenceFigure) -> str:
    doubts = [each for each in (figure.differs, *figure.flags) if each]
    doubt = f" ({'; '.join(doubts)})" if doubts else ""
    assert figure.ratio is not None
    return (
        f"note: {label}: {figure.ratio:.2f} x {figure.platform} in {figure.metric.replace('_', ' ')} "
        f"({figure.source}: {si(figure.value)} {figure.unit}){doubt}"
    )


# --- scaling efficiency, against the baseline of the same benchmark on fewer devices -------------------


def with_scaling(case: Case, found: Measurement, store: BaselineStore, machine: Machine) -> Measurement:
    """Return the measurement with `scaling_efficiency` added, where fewer devices have a baseline."""
    few = _fewest(case, found, store, machine)
    if few is None:
        return found
    platform, point = few
    many = ScalingPoint(
        devices=case.platform.devices,
        work_per_step=found.work_per_step,
        step=interval([found.run], case.policy),
    )
    case.scaling = scaling_figure(str(platform), point, many)
    metrics = {**found.run.metrics, "scaling_efficiency": case.scaling.efficiency}
    return replace(found, run=replace(found.run, metrics=metrics))


def _fewest(
    case: Case, found: Measurement, store: BaselineStore, machine: Machine
) -> tuple[PlatformName, ScalingPoint] | None:
    """Return the smallest platform of this device with a baseline of the same configuration."""
    nodes, per_node = (range(1, count + 1) for count in (case.platform.nodes, case.platform.per_node))
    sizes = [PlatformName(case.platform.device, *size) for size in product(per_node, nodes)]
    for platform in sorted(sizes, key=lambda size: (size.devices, size.nodes)):
        if platform.devices >= case.platform.devices:
            break
        # A bad file is not selected here: a session that selects it reports the error.
        file = store.read_usable(machine.disk_name(platform), case.suite)
        entry = file.benchmarks.get(baseline_key(case.node_id, found.configuration)) if file else None
        if file is None or entry is None or dict(entry.configuration) != dict(found.configuration):
            continue
        ours = {**found.environment.identity, "device_count": ""}
        stored = {key: {**each.identity, "device_count": ""} for key, each in file.environments.items()}
        if runs := [run for run in entry.runs if stored[run.environment] == ours]:
            step = interval(runs, case.policy)
            point = ScalingPoint(devices=platform.devices, work_per_step=entry.work_per_step, step=step)
            return platform, point
    return None
