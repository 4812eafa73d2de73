"""Fresh processes that are started several at a time, before their turns: importing is most of what a start takes.

Nobody measures while they start, and they are idle, with nothing on the device, when somebody does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from pytest_accel.platforms.cpu import available_cores
from pytest_accel.report.progress import Progress
from pytest_accel.session.ranks.shapes import Shape
from pytest_accel.settings import Settings
from pytest_accel.spmd.gang import Coming, Gang
from pytest_accel.spmd.launch import GangError
from pytest_accel.spmd.orders import Preparation

MOST = 8  # at a time, each with its own copy of what it imports
CORES_EACH = 2  # of the host, for importing
# What takes seconds, and most benchmarks of a session import that has done so itself.
SLOW_IMPORTS = ("torch", "torch._dynamo", "torch._inductor.compile_fx", "torchvision")


class Ahead:
    """Processes that wait for their first order."""

    def __init__(self, launch: Callable[[Shape, Settings], Coming]) -> None:
        self._launch = launch
        self._waiting: list[tuple[Shape, Gang]] = []
        self._at_once = min(MOST, available_cores() // CORES_EACH)

    def start(self, coming: Iterable[tuple[Shape, Settings]], progress: Progress) -> None:
        """Start processes for those whose turns come next, unless some are left of the last time.

        Where that fails, each is started in its turn from then on, and says there what is wrong.
        """
        together = [each for each in coming if not each[0].process_group][: self._at_once]
        if self._waiting or len(together) < 2:
            return
        progress.phase(f"starting {len(together)} processes", None)
        started: list[tuple[Shape, Coming]] = []
        try:
            for shape, settings in together:
                started.append((shape, self._launch(shape, settings)))
            while started:
                shape, process = started.pop(0)
                self._waiting.append((shape, process.come(progress.tick)))
            self._prepare(max(settings.rendezvous_s for _, settings in together), progress)
        except GangError:
            self._at_once = 0
            self.end()
        except BaseException:
            self.end()
            raise
        finally:
            for _, process in started:
                process.end()

    def take(self, shape: Shape) -> Gang | None:
        """One of this shape; None where there is none, or it is gone."""
        found = next((each for each in self._waiting if each[0] == shape), None)
        if found is None:
            return None
        self._waiting.remove(found)
        gang = found[1]
        if gang.alive:
            return gang
        gang.end()
        return None

    def end(self) -> None:
        while self._waiting:
            self._waiting.pop()[1].end()

    def _prepare(self, timeout_s: float, progress: Progress) -> None:
        """All at the same time; one that is gone by then is not kept."""
        modules = tuple(name for name in SLOW_IMPORTS if name in sys.modules)
        told = [
            gang.give(Preparation(platform=str(shape.platform), modules=modules), timeout_s=timeout_s)
            for shape, gang in self._waiting
        ]
        done = [
            gang.answer(course, waiting=progress.tick).whole
            for (_, gang), course in zip(self._waiting, told, strict=True)
        ]
        self._waiting = [each for each, well in zip(self._waiting, done, strict=True) if well]
