"""Fresh processes that are started several at a time, before their turns: importing is most of what a start takes.

Nobody measures while they start, and they wait, with nothing on the device, while somebody does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from functools import cache

from pytest_accel.distributed.group import Preparation, StartingGroup, WorkerGroup
from pytest_accel.distributed.launch import WorkerError
from pytest_accel.options import Settings
from pytest_accel.platforms.machine import available_cores
from pytest_accel.platforms.names import PlatformName
from pytest_accel.report.terminal import Progress
from pytest_accel.session.shapes import Shape

MOST = 8  # at a time, each with its own copy of what it imports
CORES_EACH = 2  # of the host, for importing
# What takes seconds. Where a session has imported it, most of its benchmarks do.
SLOW_IMPORTS = ("torch", "torch._dynamo", "torch._inductor.compile_fx", "torchvision")


class Ahead:
    """Processes that wait for their first order."""

    def __init__(self, launch: Callable[[Shape, Settings], StartingGroup]) -> None:
        self._launch = launch
        self._coming: list[tuple[Shape, StartingGroup]] = []
        self._waiting: list[tuple[Shape, WorkerGroup]] = []
        self._given_up = False

    def start(self, wanted: Sequence[tuple[Shape, Settings]], progress: Progress) -> list[int]:
        """Start processes for those whose turns come next, unless some are left for them; return which have one now.

        Where one fails, all are started in their turns from then on, and say there what is wrong.
        """
        self._end_all_but({shape for shape, _ in wanted})
        alone = [number for number, (shape, _) in enumerate(wanted) if not shape.process_group]
        together = alone[: at_once()]
        if self._waiting or self._given_up or len(together) < 2:
            return []
        progress.phase(f"starting {len(together)} processes", None)
        try:
            for number in together:
                shape, settings = wanted[number]
                self._coming.append((shape, self._launch(shape, settings)))
            while self._coming:
                shape, process = self._coming[0]
                self._waiting.append((shape, process.connect(progress.tick)))
                del self._coming[0]
            prepared = self._prepare(max(wanted[number][1].timeout_s for number in together), progress)
        except WorkerError:
            self._given_up = True
            self.end()
            return []
        except BaseException:
            self.end()
            raise
        self._given_up = not all(prepared)
        return [number for number, well in zip(together, prepared, strict=True) if well]

    def take(self, shape: Shape) -> WorkerGroup | None:
        """One of this shape; None where there is none, or it is gone."""
        found = next((each for each in self._waiting if each[0] == shape), None)
        if found is None:
            return None
        if not found[1].alive:
            self._drop(found)
            return None
        self._waiting.remove(found)
        return found[1]

    def end(self) -> None:
        """End all of them; what is interrupted meanwhile is still known, to be ended by the next call."""
        while self._coming:
            self._coming[-1][1].end()
            self._coming.pop()
        self._end_all_but(())

    def _end_all_but(self, shapes: Collection[Shape]) -> None:
        for each in [each for each in self._waiting if each[0] not in shapes]:
            self._drop(each)

    def _drop(self, waiting: tuple[Shape, WorkerGroup]) -> None:
        waiting[1].end()
        self._waiting.remove(waiting)

    def _prepare(self, timeout_s: float, progress: Progress) -> list[bool]:
        """All at the same time; who is well is kept."""
        told = [
            gang.give(
                Preparation(platform=str(shape.platform), modules=_modules(shape.platform)),
                timeout_s=timeout_s,
            )
            for shape, gang in self._waiting
        ]
        answers = [
            gang.answer(course, waiting=progress.tick)
            for (_, gang), course in zip(self._waiting, told, strict=True)
        ]
        prepared = [answer.complete and answer.culprit is None for answer in answers]
        for each, well in zip(list(self._waiting), prepared, strict=True):
            if not well:
                self._drop(each)
        return prepared


@cache
def at_once() -> int:
    """How many are started together: as many as this process has cores for."""
    from pytest_accel.platforms.host import Files, read_quota

    granted = read_quota(Files()).cpus
    cores = available_cores() if granted is None else min(available_cores(), int(granted))
    return min(MOST, cores // CORES_EACH)


def _modules(platform: PlatformName) -> tuple[str, ...]:
    """What a process imports before its turn; nothing on the CPU, where it would count as memory of the benchmark."""
    if platform.device == "cpu":
        return ()
    return tuple(name for name in SLOW_IMPORTS if name in sys.modules)
