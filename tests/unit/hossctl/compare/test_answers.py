"""The sentences and numbers at the top of every report, held to the runs they are of."""

from unit.hossctl.compare.made_up import comparison, run

from hossctl.choices import Load, Mode
from hossctl.compare.document import Comparison, DecisionTimes, Overcommit
from hossctl.compare.report.answers import headlines, sentences
from hossctl.compare.report.summary import summarise

COST = DecisionTimes(job_ms=5, task_ms=1)


def told(made: Comparison) -> list[str]:
    return sentences(made, summarise(made))


def small(**fields) -> Comparison:
    given = {"loads": (Load.UNIFORM,), "workers": (1, 4), "fills": (0.95,), "noise": 0.01}
    return comparison(**{**given, **fields})


def test_there_are_three_and_each_names_what_it_compares_with():
    over_one, over_uncoordinated, over_partitioned = told(small())
    assert over_one.startswith(
        "Over one scheduler: on 2 cores that all services share 4 schedulers placed 0."
    )
    assert over_uncoordinated.startswith("Over uncoordinated ones: ")
    assert over_partitioned.startswith("Over a partitioned cluster: ")


def test_several_that_share_the_cores_with_everything_are_said_to():
    assert "on 2 cores that all services share" in told(small())[0]
    assert "cores" not in told(small(decisions=(COST,)))[0]


def test_with_decision_cost_added_the_gain_is_told_apart_from_that_without():
    text = told(small(decisions=(DecisionTimes(), COST)))[0]
    assert "without decision cost on 2 cores that all services share 4 schedulers placed 0." in text
    assert "with decisions of 5 ms a job and 1 ms a pod 4 schedulers placed 3." in text


def test_a_rate_within_the_noise_is_not_called_faster_or_slower():
    text = told(small(noise=0.3))[1]
    assert "times as many pods a second, which is within the noise of these runs" in text


def test_of_single_runs_no_difference_is_claimed_and_no_equality_either():
    over_one, over_uncoordinated, _ = told(
        small(repetitions=1, modes=(Mode.SINGLE, Mode.UNCOORDINATED, Mode.HOSS))
    )
    assert "times as many pods a second in single runs, which is no proof: the noise is unknown" in over_one
    assert "which is no proof" in over_uncoordinated
    assert "CPU" not in over_one


def test_overcommitted_nodes_are_told_of_the_worst_setting_and_none_of_hoss():
    text = told(small(fills=(0.5, 0.95), seed=3))[1]
    assert "they overcommitted up to" in text
    assert "of 500 nodes" in text
    assert "1.30 times what it has, HOSS none" in text


def test_a_node_that_hoss_overcommitted_is_not_passed_over():
    made = small()
    runs = [
        each.model_copy(update={"overcommit": Overcommit(nodes=3, worst=1.1, excess={})})
        if each.cell.mode == Mode.HOSS
        else each
        for each in made.runs
    ]
    made = made.model_copy(update={"runs": runs})
    assert "HOSS 3, which it must never do" in told(made)[1]
    assert "3" in [headline.value for headline in headlines(summarise(made))]


def test_pods_left_over_by_partitions_are_counted_over_all_settings():
    text = told(small(fills=(0.8, 0.95)))[2]
    assert "partitions left" in text
    assert "HOSS 0, in 2 settings together" in text
    assert "against one global lock it placed 1." in text


def test_what_was_not_measured_is_said_to_be_so():
    made = small(modes=(Mode.HOSS,))
    assert told(made) == [
        "Over one scheduler: not measured.",
        "Over uncoordinated ones: not measured.",
        "Over a partitioned cluster: not measured.",
    ]
    empty = made.model_copy(update={"runs": []})
    assert told(empty) == told(made)
    assert headlines(summarise(empty)) == []


PEERS = (Mode.SINGLE, Mode.HOSS, Mode.KUBE_SCHEDULER, Mode.KUBE_HOSS)


def test_beside_kube_scheduler_hoss_on_kubernetes_is_judged_and_what_both_pay_for_is_said():
    text = told(small(modes=PEERS))[-1]
    assert text.startswith("Beside kube-scheduler: on the same API server 4 schedulers with HOSS placed 1.7")
    assert text.endswith("These cells pay for an API server and etcd, all others do not.")


def test_modes_on_kubernetes_change_no_answer_about_the_others():
    made = small(modes=PEERS)
    others = made.model_copy(update={"runs": [each for each in made.runs if each.cell.mode in PEERS[:2]]})
    assert told(made)[:3] == told(others)
    assert headlines(summarise(made)) == headlines(summarise(others))


def test_at_full_utilisation_is_compared_on_the_same_loads_and_below_it_is_not():
    made = small(modes=(Mode.SINGLE, Mode.HOSS), fills=(1.0,))
    runs = [
        run.model_copy(
            update={
                "utilisation": {"cpu": 0.99 - 0.1 * run.repetition - 0.004 * (run.cell.mode == Mode.HOSS)}
            }
        )
        for run in made.runs
    ]
    text = told(made.model_copy(update={"runs": runs}))[-1]
    assert text == (
        "Asked for all there is: 4 schedulers with HOSS filled 88.6 % of all cpu, one scheduler 89.0 % "
        "(uniform, -0.40 points on the same load)."
    )
    assert not any(text.startswith("Asked for all") for text in told(small()))


def test_the_peer_alone_changes_no_answer():
    made = small()
    peer = run(made.runs[0].cell.model_copy(update={"mode": Mode.KUBE_SCHEDULER}))
    assert told(made.model_copy(update={"runs": [*made.runs, peer]})) == told(made)


def test_there_are_five_numbers_and_gains_with_and_without_decision_cost_are_two():
    assert len(headlines(summarise(small()))) == 5
    without, slow, *others = headlines(summarise(small(decisions=(DecisionTimes(), COST))))
    assert without.value.startswith("0.")
    assert without.meaning.endswith("by those of one, without decision cost")
    assert slow.value.startswith("3.")
    assert slow.meaning.endswith("by those of one, with decisions of 5 ms a job and 1 ms a pod")
    assert len(others) == 4


def test_schedulers_are_ranked_by_pods_bound_lost_room_and_speed_and_told_apart_by_noise_alone():
    made = small(modes=(Mode.HOSS,), workers=(4,), schedulers=("default", "fgd", "mine.py:Mine"))
    lost = {"default": 0.2, "fgd": 0.1, "mine.py:Mine": 0.1}
    runs = [
        run.model_copy(
            update={
                "quality": run.quality.model_copy(update={"stranded": {"cpu": lost[run.cell.scheduler]}}),
                "pods_per_second": 1000.0 + (run.cell.scheduler == "default") * 500 + run.repetition,
            }
        )
        for run in made.runs
    ]
    (text,) = [text for text in told(made.model_copy(update={"runs": runs})) if text.startswith("Between")]
    assert text.startswith("Between schedulers (HOSS, uniform, 500 nodes, fill 95 %): pods bound: ")
    assert "room that pods cannot use: fgd 10.0 %, Mine 10.0 % (within the noise), default 20.0 %" in text
    assert "pods/s: default 1,501, fgd 1,001, Mine 1,001" in text


def test_one_scheduler_is_ranked_with_none():
    assert not [text for text in told(small()) if text.startswith("Between")]


def test_the_answers_on_modes_hold_schedulers_apart():
    """A pair of cells has one scheduler: else a slow algorithm would make HOSS slow."""
    made = small(schedulers=("default", "fgd"))
    runs = [
        run.model_copy(update={"pods_per_second": run.pods_per_second * (run.cell.scheduler == "fgd" or 10)})
        for run in made.runs
    ]
    texts = told(made.model_copy(update={"runs": runs}))
    assert "in 2 settings" in texts[0]
    assert "placed 0." in texts[0]
