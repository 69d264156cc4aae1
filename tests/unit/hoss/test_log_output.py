"""A log that cannot be written ends no service."""

import io
import logging

import pytest
import structlog
from aiohttp.http_exceptions import LineTooLong

from hoss import telemetry
from hoss.telemetry.logs import LibraryLog, LogOutput


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


@pytest.fixture
def library():
    """A logger as of aiohttp, whose records LibraryLog gets."""
    handler, log = LibraryLog(), logging.getLogger("aiohttp.server")
    log.addHandler(handler)
    log.propagate = False
    yield log
    log.propagate = True
    log.removeHandler(handler)


def test_a_request_that_a_library_cannot_read_is_one_short_line_without_a_traceback(library):
    with structlog.testing.capture_logs() as lines:
        library.error("Error handling request\nfrom %s", "somebody", exc_info=ValueError("x" * 10**6))
    [line] = lines
    assert line["event"] == "library_logged"
    assert line["text"] == "Error handling request from somebody"
    assert line["error"].startswith("ValueError: xxx")
    assert "exc_info" not in line
    assert len(str(line)) < 1000


def test_what_a_bad_request_holds_is_not_logged(library):
    """aiohttp quotes it, and a header that is too long may be a token."""
    with structlog.testing.capture_logs() as lines:
        library.error("Error handling request", exc_info=LineTooLong(b"Bearer s3cret", 8190))
    assert lines[0]["error"] == "LineTooLong"
    assert "s3cret" not in str(lines)


def test_bad_requests_fill_no_log(library):
    with structlog.testing.capture_logs() as lines:
        for _ in range(1000):
            library.error("Error handling request")
    assert 10 <= len(lines) <= 30  # ten in a second; the loop may see the next ones


def test_what_a_library_says_of_a_fault_of_ours_keeps_its_traceback():
    handler, log = LibraryLog(), logging.getLogger("of.this.test")
    log.addHandler(handler)
    try:
        with structlog.testing.capture_logs() as lines:
            log.error("Task exception was never retrieved", exc_info=ValueError("ours"))
    finally:
        log.removeHandler(handler)
    assert isinstance(lines[-1]["exc_info"], ValueError)
