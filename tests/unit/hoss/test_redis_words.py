"""Redis' errors in words for people."""

import pytest

from hoss.redis_words import words

FULL = "Error running script (call to f_1): @user_script: 3: -MISCONF Errors writing to the AOF file: No space left on device"
SNAPSHOT = "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (FULL, "Redis cannot write to its disk: No space left on device; mend that, and all goes on by itself"),
        (SNAPSHOT, "Redis cannot write to its disk: its log says why; mend that, and all goes on by itself"),
        ("Connection refused", "Connection refused"),
        ("two\n lines", "two lines"),
    ],
)
def test_a_disk_that_redis_cannot_write_to_is_told_with_the_way_out_and_all_else_as_it_is(said, told):
    assert words(Exception(said)) == told
