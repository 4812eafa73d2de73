"""A pickle is a program: CIFAR's are read, and no other is run, whatever it calls itself."""

from __future__ import annotations

import os
import pickle
import struct

import numpy as np
import pytest

from pytest_accel.workloads.data.errors import DataError
from pytest_accel.workloads.data.formats.pickled import KNOWN, read_pickle
from tests.support.data_sets import pixels, python2_pickle, write_cifar_python

ROW = pixels(2, 3072)
LABELS = [1, 2]


def refused(tmp_path, content):
    path = tmp_path / "train"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_pickle(path)
    assert type(caught.value) is DataError
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value)


class Call:
    """Pickles as a call: what an attacker's `__reduce__` does."""

    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_runs_a_command_does_not(tmp_path, protocol):
    mark = tmp_path / "mark"
    evil = {"data": Call(os.system, f"touch {mark}"), "fine_labels": LABELS}
    text = refused(tmp_path, pickle.dumps(evil, protocol=protocol))
    assert "refused: it asks for posix.system" in text
    assert not mark.exists()


def test_the_attack_is_real(tmp_path):
    mark = tmp_path / "mark"
    pickle.loads(pickle.dumps(Call(os.system, f"touch {mark}")))
    assert mark.exists()


def global_call(module, name, *arguments, protocol=2):
    """A call of a global by its name, which need not exist here; protocol 4 also takes dotted names."""
    tail = pickle.dumps(arguments, protocol=2)[2:-1] + b"R."
    if protocol == 2:
        return b"\x80\x02c" + f"{module}\n{name}\n".encode() + tail

    def text(word):
        return b"\x8c" + bytes([len(word)]) + word.encode()

    return b"\x80\x04" + text(module) + text(name) + b"\x93" + tail


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("numpy.testing._private.utils", "runstring"),
        ("numpy", "load"),
        ("numpy", "fromfile"),
        ("numpy", "save"),
        ("numpy", "ndarray.tofile"),
        ("numpy", "dtype.__class__"),
        ("numpy", "os.system"),
        ("numpy.core.multiarray", "fromfile"),
        ("numpy.core.multiarray", "_reconstruct.__globals__"),
        ("numpy.f2py.crackfortran", "myeval"),
        ("builtins", "eval"),
        ("__builtin__", "eval"),
        ("_codecs", "encode"),
        ("copyreg", "_reconstructor"),
    ],
)
def test_what_looks_like_numpy_is_refused_too(tmp_path, module, name, protocol):
    mark = tmp_path / "mark"
    command = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    text = refused(tmp_path, global_call(module, name, command, {}, protocol=protocol))
    assert f"refused: it asks for {module}.{name}" in text
    assert not mark.exists()


def test_runstring_would_have_run(tmp_path):
    mark = tmp_path / "mark"
    command = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    pickle.loads(global_call("numpy.testing._private.utils", "runstring", command, {}))
    assert mark.exists()


@pytest.mark.parametrize(("module", "name"), sorted(KNOWN))
def test_known_names_make_nothing_and_cannot_be_changed(tmp_path, module, name):
    mark = tmp_path / "mark"
    assert "not a pickled dictionary" in refused(tmp_path, global_call(module, name, str(mark)))
    state = pickle.dumps({"__call__": 1}, protocol=2)[2:-1]
    text = refused(tmp_path, b"\x80\x02c" + f"{module}\n{name}\n".encode() + state + b"b.")
    assert f"sets attributes of {name}" in text
    assert not mark.exists()
    (path,) = write_cifar_python(tmp_path, train=2)["train"].paths
    assert read_pickle(path)[0].shape == (2, 3072)


def test_numpy_itself_never_sees_the_file(tmp_path):
    # An array of objects, whose state is a list: numpy would take it.
    made = {b"data": np.array([{}, []], dtype=object), b"fine_labels": LABELS}
    assert "'data' is not an array" in refused(tmp_path, pickle.dumps(made, protocol=4))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ([1], "not a pickled dictionary"),
        ({}, "no 'data'"),
        ({b"data": ROW}, "no 'fine_labels'"),
        ({b"data": [1], b"fine_labels": LABELS}, "'data' is not an array"),
        ({b"data": ROW.astype(np.float32), b"fine_labels": LABELS}, "not an array of unsigned bytes"),
        ({b"data": ROW.astype(np.int8), b"fine_labels": LABELS}, "not an array of unsigned bytes"),
        ({b"data": ROW[:, :3071].copy(), b"fine_labels": LABELS}, "not rows of 3072"),
        ({b"data": ROW.reshape(-1).copy(), b"fine_labels": LABELS}, "not rows of 3072"),
        ({b"data": ROW[:0].copy(), b"fine_labels": []}, "not rows of 3072"),
        ({b"data": ROW, b"fine_labels": ["1", "2"]}, "not a list of numbers"),
        ({b"data": ROW, b"fine_labels": [1, 2**70]}, "not a list of numbers"),
        ({b"data": ROW, b"fine_labels": [True, False]}, "not a list of numbers"),
        ({b"data": ROW, b"fine_labels": 7}, "not a list of numbers"),
    ],
)
@pytest.mark.parametrize("protocol", [4, 5])
def test_pickles_of_something_else_are_refused(tmp_path, content, problem, protocol):
    assert problem in refused(tmp_path, pickle.dumps(content, protocol=protocol))


def test_arrays_in_fortrans_order_are_read_as_written(tmp_path):
    for protocol in (4, 5):
        path = tmp_path / f"train{protocol}"
        content = {"data": np.asfortranarray(ROW), "fine_labels": LABELS}
        path.write_bytes(pickle.dumps(content, protocol=protocol))
        assert np.array_equal(read_pickle(path)[0], ROW)


@pytest.mark.parametrize("keep", [0, 1, 2, 30, 60, 3000, 6300, -1])
def test_torn_pickles_are_refused(tmp_path, keep):
    whole = python2_pickle(ROW, LABELS)
    assert len(whole) > 6300
    assert "not a whole pickle" in refused(tmp_path, whole[:keep])


def test_a_shape_that_its_bytes_do_not_fill_is_refused(tmp_path):
    content = python2_pickle(ROW, LABELS)
    shape = b"J" + struct.pack("<i", 2) + b"J" + struct.pack("<i", 3072)
    assert content.count(shape) == 1
    longer = content.replace(shape, b"J" + struct.pack("<i", 3) + b"J" + struct.pack("<i", 3072))
    assert "6144 bytes of shape (3, 3072)" in refused(tmp_path, longer)
