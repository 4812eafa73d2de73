"""CIFAR's pickles, read without running them: a pickle is a program, and this machine only lets it name arrays.

Whatever numpy functions a file names, inert stand-ins take their place and keep the arguments. The bytes of the array
are then taken from those. Any other name is refused before it is looked up.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_accel.workloads.data.errors import DataError, reading, unreadable

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

REMEDY = "Download cifar-100-python.tar.gz again from where you trust it."
RECONSTRUCT, FROM_BUFFER, NDARRAY, DTYPE = "_reconstruct", "_frombuffer", "ndarray", "dtype"
# numpy moved its core in 2.0; protocol 5 pickles arrays through _frombuffer.
KNOWN = {
    ("numpy.core.multiarray", RECONSTRUCT),
    ("numpy._core.multiarray", RECONSTRUCT),
    ("numpy.core.numeric", FROM_BUFFER),
    ("numpy._core.numeric", FROM_BUFFER),
    ("numpy", NDARRAY),
    ("numpy", DTYPE),
}


class _Made:
    """What a file asked one of the known names for: the name, its arguments, the state set afterwards."""

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, arguments: tuple[object, ...]) -> None:
        self.name = name
        self.arguments = arguments
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Name:
    """A known name. It can be called, and nothing else can be done to it: a pickle may also set attributes."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: object) -> _Made:
        return _Made(self._name, arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError(f"the file sets attributes of {self._name}")


class _Refused(pickle.UnpicklingError):
    """A global that no CIFAR file needs."""


class _Inert(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as the base class has it
        if (module, name) not in KNOWN:
            raise _Refused(f"{module}.{name}")
        return _Name(name)


def read_pickle(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the array "data" and the list "fine_labels" of a CIFAR-100 file."""
    try:
        with reading(path), path.open("rb") as file:
            # As bytes: the published files hold Python 2's strings, pixels among them.
            content = _Inert(file, encoding="bytes").load()
    except _Refused as error:
        raise unreadable(path, f"refused: it asks for {error}, which no CIFAR file needs", REMEDY) from None
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001 - damaged opcodes end in any of them
        raise unreadable(path, f"not a whole pickle: {error or type(error).__name__}", REMEDY) from None
    if not isinstance(content, dict):
        raise unreadable(path, "not a pickled dictionary", REMEDY)
    try:
        return _pixels(_entry(content, "data")), _labels(_entry(content, "fine_labels"))
    except ValueError as error:
        raise unreadable(path, str(error), REMEDY) from None


def _entry(content: dict[Any, Any], key: str) -> object:
    found = content.get(key.encode(), content.get(key))  # Python 2 wrote bytes, a user's Python 3 either
    if found is None:
        raise ValueError(f"the dictionary has no {key!r}")
    return found


def _pixels(made: object) -> NDArray[np.uint8]:
    match made:
        # An array's state: version, shape, dtype, whether in Fortran's order, bytes (numpy's __reduce__).
        case _Made(name="_reconstruct", state=(_, shape, dtype, fortran, bytes(data))):
            order = "F" if fortran else "C"
        case _Made(name="_frombuffer", arguments=((bytes() | bytearray()) as data, dtype, shape, str(order))):
            pass
        case _:
            raise ValueError("'data' is not an array")
    if not isinstance(dtype, _Made) or dtype.arguments[:1] not in {("u1",), (b"u1",)}:
        raise ValueError("'data' is not an array of unsigned bytes")
    match shape:
        case (int(count), 3072) if 0 < count == len(data) / 3072 and order in {"C", "F"}:
            pixels = np.frombuffer(data, np.uint8)
            return pixels.reshape((count, 3072), order="F" if order == "F" else "C").copy()
        case _:
            raise ValueError(f"'data' is {len(data)} bytes of shape {shape}, not rows of 3072")


def _labels(found: object) -> NDArray[np.int64]:
    if not isinstance(found, list) or not all(type(label) is int and abs(label) < 2**31 for label in found):
        raise ValueError("'fine_labels' is not a list of numbers")
    return np.array(found, np.int64)
