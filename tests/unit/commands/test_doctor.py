"""The doctor's screen: one line a finding, the remedy under it, and the verdict last."""

import threading

from pytest_accel import cli
from pytest_accel.commands.doctor import screen, verdict
from pytest_accel.doctor import doctor
from pytest_accel.doctor.findings import Finding, Level
from pytest_accel.platforms import machine


def finding(subject, text="fine", *, level=Level.OK, group="devices", **more):
    return Finding(
        group=group,
        subject=subject,
        text=text,
        level=level,
        remedy="" if level is Level.OK else "Repair it.",
        **more,
    )


def test_screen():
    findings = [
        finding("driver", "580.65"),
        finding("power limit", "500 W", level=Level.WARNING, of="GPU 0"),
        finding("governor", "unknown: no cpufreq", group="cpu", known=False),
        finding("baselines", "full", level=Level.PROBLEM, group="disk"),
    ]
    assert screen(findings) == [
        "devices",
        "  ok       driver       580.65",
        "  WARNING  power limit  GPU 0: 500 W",
        "                        -> Repair it.",
        "cpu",
        "  -        governor     unknown: no cpufreq",
        "disk",
        "  PROBLEM  baselines    full",
        "                        -> Repair it.",
        "",
        "1 problem, 1 warning. Do not measure before this is put right: baselines.",
    ]


def test_devices_that_are_alike_share_a_line():
    findings = [
        *(finding("ECC", "on", of=f"GPU {number}") for number in (0, 1, 2, 5)),
        finding("ECC", "off", of="GPU 3", level=Level.WARNING),
        finding("ECC", "on", of="GPU 10"),
    ]
    assert screen(findings)[1:4] == [
        "  ok       ECC  GPU 0-2,5,10: on",
        "  WARNING  ECC  GPU 3: off",
        "                -> Repair it.",
    ]


def test_long_texts_are_wrapped_under_their_column_and_commands_stay_whole():
    command = "`nvidia-smi" + "-" * 60 + "`"
    lines = screen([finding("a", f"{'word ' * 30}{command}")], width=60)
    assert max(len(line) for line in lines if command not in line) <= 60
    assert any(command in line for line in lines)
    assert all(line.startswith(" " * 14) for line in lines[2:4])


def test_nothing_from_outside_steers_the_terminal():
    text = "\n".join(screen([finding("a\x1b[2J", "b\x1b]0;x\x07\r\nc", of="GPU\x9b 1")]))
    assert not any(character in text for character in "\x1b\x07\r\x9b")
    assert len(text.splitlines()) == 4


def test_verdicts():
    assert verdict([]) == verdict([finding("a")]) == "Nothing stands in the way of a measurement."
    noisy = [finding("load", level=Level.WARNING), finding("ECC", level=Level.WARNING, of="GPU 1")]
    assert verdict(noisy).startswith("2 warnings. Measuring works")
    assert verdict(noisy).endswith(": load, GPU 1 ECC.")


def test_a_driver_that_hangs_does_not_hang_the_command(monkeypatch, capsys):
    released = threading.Event()
    monkeypatch.setattr(machine, "detect", lambda _catalogue: released.wait(10))
    monkeypatch.setattr(doctor, "DEVICES_LIMIT_S", 0.05)
    try:
        assert cli.main(["doctor"]) == 1
    finally:
        released.set()
    said = capsys.readouterr().out
    assert "note         devices are not listed" in said
    assert "a driver did not answer within 0.05 s" in said
    assert "  cpu " in said  # the platform
