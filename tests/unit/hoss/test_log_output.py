"""A log that cannot be written ends no service."""

import io

import structlog

from hoss import telemetry
from hoss.log_output import LogOutput


class Disk(io.StringIO):
    """A stream whose disk may be full."""

    full = False

    def write(self, text):
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_lines_for_which_there_is_no_room_are_dropped_and_those_after_them_are_written():
    disk = Disk()
    log = LogOutput(disk)
    disk.full = True
    assert log.write("lost\n") == 5
    log.flush()
    disk.full = False
    log.write("kept\n")
    assert disk.getvalue() == "kept\n"


def test_the_services_log_is_such_a_one(monkeypatch):
    disk = Disk()
    disk.full = True
    monkeypatch.setattr("sys.stderr", disk)
    before = structlog.get_config()
    try:
        telemetry.configure("test")
        telemetry.logger().info("event")
    finally:
        structlog.configure(**before)
        structlog.contextvars.clear_contextvars()
