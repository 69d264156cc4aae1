"""`hoss certs`: what it prints of the certificates that an authority has issued, and what it refuses."""

import json

import pytest


def shown(hoss, *options):
    result = hoss("certs", "show", "--authority", "authority", *options)
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.fixture
def issued(hoss):
    """client/ana in a directory elsewhere, and worker/w1 among the authority's own."""
    for words in (
        ("init",),
        ("issue", "client/ana", "--role", "view", "--tenant", "research", "--out", "ana"),
        ("issue", "worker/w1"),
    ):
        result = hoss("certs", *words, "--authority", "authority")
        assert result.exit_code == 0, result.stderr
    return hoss


def test_show_lists_what_was_written_elsewhere_and_marks_what_is_revoked(issued):
    hoss = issued
    assert hoss("certs", "revoke", "client/ana", "--authority", "authority").exit_code == 0
    heading, ana, worker = shown(hoss).splitlines()
    assert heading.split() == ["IDENTITY", "ROLE", "TENANT", "NOT", "AFTER", "REVOKED", "SERIAL"]
    documents = json.loads(shown(hoss, "-o", "json"))["certificates"]
    assert ana.split() == [
        "client/ana",
        "view",
        "research",
        *(documents[0][name] for name in ("notAfter", "revoked", "serial")),
    ]
    assert [(held["identity"], held["revoked"], held["directory"]) for held in documents] == [
        ("client/ana", "yes", ""),
        ("worker/w1", "no", "authority/issued/worker-w1"),
    ]
    assert worker.split()[0] == "worker/w1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("renew", "client/ana"), "was written elsewhere, and its key is there alone"),
        (("renew", "client/eve"), "no certificate was issued here for 'client/eve'; `hoss certs show` lists"),
        (("revoke", "ana"), "no certificate was issued here for 'ana'"),
        (("issue", "resolver/r1"), "identity: resolver/r1: a resolver has no name; write resolver\n"),
        (("issue", "worker"), "identity: a worker has a name of at most 253 printable characters\n"),
        (("issue", "dispatcher", "--host", "bücher.example"), "host: 'bücher.example' is neither"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(issued, words, said):
    result = issued("certs", *words, "--authority", "authority")
    assert result.exit_code != 0
    assert said in result.stderr
    assert "fault in hoss" not in result.stderr


def test_without_an_authority_there_is_nothing_to_show(hoss):
    result = hoss("certs", "show", "--authority", "nowhere")
    assert "nowhere: holds no authority; `hoss certs init` makes one" in result.stderr
