"""Which platform a client without an address talks to."""

import pytest

from hoss.contexts import LOCAL, Context, Contexts, found_addresses, save_contexts
from hoss.errors import ConfigError, TransportError


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOSS_HOME", str(tmp_path))
    for name in ("HOSS_DISPATCHER", "HOSS_RESOLVER", "HOSS_CONTEXT"):
        monkeypatch.delenv(name, raising=False)


def test_the_environment_wins_then_the_current_context_then_the_local_platform(tmp_path, monkeypatch):
    with pytest.raises(TransportError, match="start one with `hoss up`, or set HOSS_DISPATCHER"):
        found_addresses("dispatcher")
    known = Contexts().with_context(LOCAL, Context("127.0.0.1:1", "127.0.0.1:2"))
    save_contexts(tmp_path, known)
    assert found_addresses("dispatcher") == ["127.0.0.1:1"]
    assert found_addresses("resolver") == ["127.0.0.1:2"]
    save_contexts(tmp_path, known.with_context("lab", Context("lab-1:7100, lab-2:7100")).using("lab"))
    assert found_addresses("dispatcher") == ["lab-1:7100", "lab-2:7100"]
    assert found_addresses("resolver") == ["127.0.0.1:2"]  # the context names none
    monkeypatch.setenv("HOSS_CONTEXT", LOCAL)
    assert found_addresses("dispatcher") == ["127.0.0.1:1"]
    monkeypatch.setenv("HOSS_DISPATCHER", "elsewhere:7100")
    assert found_addresses("dispatcher") == ["elsewhere:7100"]


def test_a_mistyped_context_is_no_other_platform(tmp_path, monkeypatch):
    save_contexts(
        tmp_path, Contexts().with_context(LOCAL, Context("127.0.0.1:1")).with_context("lab", Context("lab:1"))
    )
    monkeypatch.setenv("HOSS_CONTEXT", "labb")
    with pytest.raises(ConfigError, match=r"HOSS_CONTEXT: 'labb' is no context; .*did you mean 'lab'"):
        found_addresses("dispatcher")
