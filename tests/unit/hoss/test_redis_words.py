"""Redis errors as text for users."""

import pytest

from hoss.redis.access import words

FULL = (
    "Error running script (call to f_1): @user_script: 3: -MISCONF Errors writing to the AOF file: "
    "No space left on device"
)
SNAPSHOT = "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            FULL,
            "Redis cannot write to its disk: No space left on device; mend that, and all goes on by itself",
        ),
        (SNAPSHOT, "Redis cannot write to its disk: its log says why; mend that, and all goes on by itself"),
        ("Connection refused", "Connection refused"),
        ("two\n lines", "two lines"),
    ],
)
def test_the_text_for_a_disk_that_redis_cannot_write_to_has_a_remedy_and_other_texts_stay(error, expected):
    assert words(Exception(error)) == expected
