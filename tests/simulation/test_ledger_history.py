"""What the history of a simulation says of changes that Redis carried out together."""

import struct

from tools.simulation.ledger_history import _by_commit, _Change


def uid(number):
    return bytes([number]) * 16


def reservation(node, seq):
    """The beginning of a record: its node, cards, and its commit."""
    return struct.pack("<IHHQ", node, 0, 0, seq)


def test_of_commits_that_were_decided_together_each_has_the_pods_that_terminate_for_its_own():
    alone, preemptor, victim, bystander = map(uid, range(4))
    held = {
        alone: reservation(0, 20),
        preemptor: reservation(2, 21),
        victim: reservation(2, 4),
        bystander: reservation(0, 5),
    }
    change = _Change([], [], [alone, preemptor], [], [victim, bystander], [victim, bystander])
    first, second = _by_commit(change, held, {preemptor: victim})
    assert first == (20, _Change([], [], [alone], [], [bystander], [bystander]))
    assert second == (21, _Change([], [], [preemptor], [], [victim], [victim]))
