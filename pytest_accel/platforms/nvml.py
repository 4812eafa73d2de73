"""The one door to NVIDIA's driver: NVML opened, asked and closed, where a refusal is a value and never a crash."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

# NVML's return codes (nvml.h), where its own words do not say what is the matter.
_REASONS = {
    4: "no permission to talk to the driver",
    9: "driver not loaded",
    12: "driver library not found",
    15: "GPU is lost",
    18: "driver and library versions differ; restart after the upgrade",
}
NO_PACKAGE = "the package nvidia-ml-py is not installed"


class Refused(Exception):  # noqa: N818 -- NVML refused; nothing is wrong with the caller
    """NVML does not answer a question that nothing works without; its text says why."""


class Nvml:
    """pynvml without its exceptions. One that could not be opened says so in `problem` and answers nothing."""

    def __init__(self, pynvml: Any, problem: str = "") -> None:  # noqa: ANN401 -- the package has no types
        self._pynvml = pynvml
        self.problem = problem

    def ask(self, function: str, *arguments: object) -> Any:  # noqa: ANN401 -- each answers its own
        """The answer; None where the driver, the device or this version of the package has none."""
        return self.attempt(function, *arguments)[0]

    def attempt(self, function: str, *arguments: object) -> tuple[Any, str]:
        """The answer, and why there is none."""
        if self.problem:
            return None, self.problem
        try:
            return getattr(self._pynvml, function)(*arguments), ""
        except Exception as error:  # noqa: BLE001 -- NVMLError, a name this version lacks, undecodable text
            return None, reason(error)

    def demand(self, function: str, *arguments: object) -> Any:  # noqa: ANN401 -- each answers its own
        """The answer, or `Refused`."""
        answer, problem = self.attempt(function, *arguments)
        if problem:
            raise Refused(problem)
        return answer

    def text(self, function: str, *arguments: object) -> str:
        """The answer as text; empty where there is none."""
        answer = self.ask(function, *arguments)
        return "" if answer is None else decoded(answer)

    def constant(self, name: str) -> Any:  # noqa: ANN401 -- a number of NVML's
        return getattr(self._pynvml, name, None)

    def handle(self, uuid: str | None) -> object | None:
        """By UUID only: NVML's indices ignore CUDA_VISIBLE_DEVICES, and a wrong device is worse than none."""
        if not uuid:
            return None
        spelled = [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]
        handles = (self.ask("nvmlDeviceGetHandleByUUID", name) for name in spelled)
        return next((handle for handle in handles if handle is not None), None)


@contextmanager
def opened() -> Iterator[Nvml]:
    """NVML for as long as it is needed. NVML counts who has opened it, so that this may be nested."""
    nvml = open_nvml()
    try:
        yield nvml
    finally:
        close(nvml)


def open_nvml() -> Nvml:
    """For those who cannot use `with`; `close` it."""
    try:
        import pynvml
    except ImportError:
        return Nvml(None, NO_PACKAGE)
    try:
        pynvml.nvmlInit()
    except Exception as error:  # noqa: BLE001 -- no driver, a broken library or package
        return Nvml(None, reason(error))
    return Nvml(pynvml)


def close(nvml: Nvml) -> None:
    """Nothing to do for one that never opened; a GPU that was lost meanwhile is no error either."""
    nvml.ask("nvmlShutdown")


def reason(error: Exception) -> str:
    """Why NVML refused, in words."""
    known = _REASONS.get(getattr(error, "value", 0))
    return known or str(error).lower() or type(error).__name__


def decoded(answer: object) -> str:
    """Text; bytes before nvidia-ml-py 11.510."""
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)
