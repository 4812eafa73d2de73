"""Tar headers that are read here are read as tarfile reads them; all others are left to it."""

from __future__ import annotations

import io
import os
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.workloads.data.formats import headers as headers_module
from pytest_accel.workloads.data.formats import shards as shards_module
from pytest_accel.workloads.data.formats.headers import NotPlain, plain_members
from pytest_accel.workloads.data.images import open_images

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def archive(members, kind="ustar"):
    """Bytes of a tar file of TarInfo (or names) with contents."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[kind]) as tar:
        for member, content in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def ours(content, tmp_path_factory):
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    path.write_bytes(content)
    with path.open("rb") as file:
        return plain_members(file.fileno())


def of_tarfile(content):
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        found = [(each.name, each.offset_data, each.size) for each in tar if each.isreg()]
        return found, tar.offset


NAMES = st.text(st.sampled_from("abc./ äé\udcff0"), min_size=1, max_size=40)


@given(
    st.lists(st.tuples(NAMES, st.binary(max_size=1200)), max_size=6),
    st.sampled_from(list(FORMATS)),
)
def test_plain_archives_are_read_as_tarfile_reads_them(tmp_path_factory, members, kind):
    content = archive(members, kind)
    try:
        found = ours(content, tmp_path_factory)
    except NotPlain:
        odd = any(not name.isascii() or name.endswith("/") for name, _ in members)
        assert odd, "left to tarfile without need"
    else:
        assert found == of_tarfile(content)


@pytest.mark.parametrize("kind", ["ustar", "gnu"])
def test_folders_are_passed_over_and_a_prefix_is_part_of_the_name(tmp_path_factory, kind):
    folder = tarfile.TarInfo("n1")
    folder.type = tarfile.DIRTYPE
    deep = "d" * 60 + "/" + "e" * 39  # as long as a header's name without a prefix
    content = archive([(folder, b""), (deep, b"x"), ("b.jpg", b"y" * 512)], kind)
    assert ours(content, tmp_path_factory) == of_tarfile(content)
    if kind == "ustar":
        content = archive([("d" * 120 + "/b.jpg", b"x"), ("p" * 155 + "/" + "n" * 100, b"")])
        assert ours(content, tmp_path_factory) == of_tarfile(content)


def info(name="a.jpg", **fields):
    made = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(made, field, value)
    return made


@pytest.mark.parametrize(
    ("members", "kind"),
    [
        ([(info("n" * 150), b"x")], "gnu"),  # a long name
        ([(info("n" * 150), b"x")], "pax"),
        ([(info(mtime=1.5), b"x")], "pax"),
        ([(info(pax_headers={"comment": "x"}), b"x")], "pax"),
        ([(info(type=tarfile.SYMTYPE, linkname="b"), b"")], "ustar"),
        ([(info(type=tarfile.LNKTYPE, linkname="b"), b"")], "ustar"),
        ([(info(type=tarfile.FIFOTYPE), b"")], "ustar"),
        ([(info(type=tarfile.CONTTYPE), b"x")], "ustar"),
        ([(info(type=tarfile.GNUTYPE_SPARSE), b"x")], "gnu"),
        ([(info(type=tarfile.DIRTYPE), b"x")], "ustar"),
    ],
)
def test_unusual_members_are_left_to_tarfile(tmp_path_factory, members, kind):
    with pytest.raises(NotPlain):
        ours(archive([("plain.jpg", b"x"), *members], kind), tmp_path_factory)


def with_field(content, start, field):
    """The archive with a field of its first header replaced, and the sum of the header made good again."""
    header = bytearray(content[:512])
    header[start : start + len(field)] = field
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + content[512:]


@pytest.mark.parametrize(
    ("start", "field"),
    [
        (124, b"\x80" + bytes(10) + b"\x01"),  # a size in base 256
        (124, b"00000000009\0"),
        (124, b"         11 "),
        (124, b"000000000001"),  # a twelfth digit
        (124, b"-0000000001\0"),
        (124, b"0o000000001\0"),
        (124, b"00000_00001\0"),
        (124, bytes(12)),
        (0, b"folder/\0"),  # a folder of an archive older than POSIX
        (345, b"1234567\0"),  # times, where a GNU header has no prefix
    ],
)
def test_unusual_fields_are_left_to_tarfile(tmp_path_factory, start, field):
    content = with_field(archive([("a.jpg", b"x")], "gnu"), start, field)
    with pytest.raises(NotPlain):
        ours(content, tmp_path_factory)


def test_a_sum_that_is_written_otherwise_is_left_to_tarfile(tmp_path_factory):
    content = archive([("a.jpg", b"x")])
    for field in (b" %05o\0 ", b"%07o\0", b"%06o  "):
        otherwise = field % int(content[148:154], 8)
        changed = content[:148] + otherwise + content[156:]
        assert of_tarfile(changed) == of_tarfile(content)
        if field.startswith(b"%06o"):
            assert ours(changed, tmp_path_factory) == of_tarfile(content)
        else:
            with pytest.raises(NotPlain):
                ours(changed, tmp_path_factory)


def test_a_name_ends_at_its_first_zero(tmp_path_factory):
    content = with_field(archive([("a.jpg", b"x")]), 0, b"b.jpg\0".ljust(100, b"!"))
    assert ours(content, tmp_path_factory) == of_tarfile(content) == ([("b.jpg", 512, 1)], 1024)


@pytest.mark.parametrize("byte", range(0, 512, 37))
@pytest.mark.parametrize("at_once", [1, 2, 4096])
def test_a_header_of_which_one_byte_is_wrong_is_not_believed(tmp_path_factory, monkeypatch, byte, at_once):
    monkeypatch.setattr(headers_module, "_CHECKED_AT_ONCE", at_once)
    content = bytearray(archive([("a.jpg", b"x"), ("b.jpg", b""), ("c.jpg", b"")]))
    assert len(ours(content, tmp_path_factory)[0]) == 3
    content[1024 + byte] ^= 1  # of the second header
    with pytest.raises(NotPlain):
        ours(content, tmp_path_factory)


def test_an_archive_without_its_end_is_left_to_tarfile(tmp_path_factory):
    content = archive([("a.jpg", b"x" * 600)])
    for size in (0, 100, 512, 900, 1536):
        with pytest.raises(NotPlain):
            ours(content[:size], tmp_path_factory)
    assert len(ours(content[:2048], tmp_path_factory)[0]) == 1


@pytest.mark.parametrize("kind", FORMATS)
def test_an_index_is_the_same_whoever_read_the_headers(tmp_path, monkeypatch, kind):
    folder = tmp_path / "imagenet/train"
    folder.mkdir(parents=True)
    members = [
        (f"n{each}/{each}{ending}", content)
        for each in range(5)
        for ending, content in ((".cls", b"%d" % each), (".jpg", b"image" * each + b"!"))
    ]
    (folder / "a.tar").write_bytes(archive(members, kind))
    fast = open_images(tmp_path, "imagenet", "train")

    def refuse(descriptor):
        raise NotPlain

    monkeypatch.setattr(shards_module, "plain_members", refuse)
    os.utime(folder / "a.tar", ns=(0, 0))  # to be indexed again
    slow = open_images(tmp_path, "imagenet", "train")
    for index in range(5):
        assert fast.name(index) == slow.name(index)
        assert fast.read(index).tolist() == slow.read(index).tolist() == list(b"image" * index + b"!")
    assert fast.labels.tolist() == slow.labels.tolist() == [0, 1, 2, 3, 4]
