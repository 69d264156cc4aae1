"""How far behind a view is, by what verdicts say and the feed has yet to bring."""

from scheduler_worker.condition import LagMeter, ShardLag


def test_a_view_is_behind_by_what_was_heard_of_and_since_the_first_of_it():
    meter = LagMeter()
    meter.reached(0, 10)
    meter.expect(0, 12, now=5.0)
    meter.expect(0, 15, now=6.0)
    assert meter.lags(7.0) == [ShardLag(0, 5, 2.0)]
    meter.reached(0, 13)
    assert meter.lags(7.0) == [ShardLag(0, 2, 1.0)]
    meter.reached(0, 15)
    assert meter.lags(9.0) == [ShardLag(0, 0, 0.0)]


def test_every_shard_lags_for_itself():
    meter = LagMeter()
    meter.reached(1, 3)
    meter.reached(0, 3)
    meter.expect(1, 4, now=1.0)
    assert meter.lags(2.0) == [ShardLag(0, 0, 0.0), ShardLag(1, 1, 1.0)]


def test_what_the_feed_brought_before_its_verdict_is_no_lag():
    meter = LagMeter()
    meter.reached(0, 10)
    meter.expect(0, 10, now=1.0)
    assert meter.lags(2.0) == [ShardLag(0, 0, 0.0)]


def test_a_snapshot_of_a_history_that_began_anew_ends_every_lag():
    meter = LagMeter()
    meter.reached(0, 10)
    meter.expect(0, 100, now=1.0)
    meter.reached(0, 2, restarted=True)
    assert meter.lags(2.0) == [ShardLag(0, 0, 0.0)]


def test_however_long_nothing_is_seen_the_first_moment_and_the_last_seq_are_kept():
    meter = LagMeter()
    meter.reached(0, 0)
    for seq in range(1, 1000):
        meter.expect(0, seq, now=float(seq))
    assert meter.lags(1000.0) == [ShardLag(0, 999, 999.0)]
