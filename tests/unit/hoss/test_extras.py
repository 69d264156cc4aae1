"""The error for an extra that is not installed."""

import pytest

from hoss.errors import ConfigError
from hoss.imports import extra, without


def test_an_extra_that_is_missing_is_named_with_the_command_that_installs_it():
    message = r"^nosuchpackage: is not installed; pip install 'hoss\[bench\]'"
    with pytest.raises(ConfigError, match=message), extra("bench"):
        import nosuchpackage.part  # noqa: F401, PLC0415


def test_a_package_that_is_left_out_is_there_again_afterwards():
    with without("wave"), pytest.raises(ModuleNotFoundError):
        import wave  # noqa: PLC0415
    import wave  # noqa: F401, PLC0415
