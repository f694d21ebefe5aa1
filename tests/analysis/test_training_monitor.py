"""Training monitor: windows, trends and histories against loops; each alarm is reported once, at its step, with advice."""

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moeir.analysis import training_monitor
from moeir.analysis.training_monitor import MetricHistory
from moeir.errors import ArtifactError, DataError
from tests.oracles import training_monitor as oracles


def replay(steps):
    return training_monitor.replay({"step": number, **facts} for number, facts in enumerate(steps, start=1))


@given(st.lists(st.floats(0, 10), min_size=1, max_size=700))
@example([step % 7 + 0.5 for step in range(303)])  # 75 points of four steps, and three steps more
def test_a_course_is_that_of_the_loop(values):
    history = MetricHistory()
    for step, value in enumerate(values, start=1):
        history.add(step, value)
    assert history.mean == pytest.approx(sum(values[-500:]) / len(values[-500:]), abs=1e-9)
    assert history.overall_sum == pytest.approx(sum(values), abs=1e-9)
    expected = oracles.average_blocks(values, 128)
    assert [step for step, _ in history.points()] == [step for step, _ in expected]
    assert [mean for _, mean in history.points()] == pytest.approx([mean for _, mean in expected], abs=1e-9)


def test_the_alarm_of_a_collapse_is_said_once_for_each_expert():
    steps = [{"wins.global": 0.96, "wins.local": 0.04}] * 700 + [{"wins.global": 0.0, "wins.local": 1.0}] * 600
    alarms = replay(steps).alarms
    assert str(alarms[0]).startswith("step 500: global had the largest share of 96.0% of the queries of the last 500 steps, ")
    assert "; raise temperature or" in str(alarms[0])
    assert [alarm.step for alarm in alarms] == [500, 1174]  # 474 steps of 1 and 26 of 0.04 are the first above 0.95
    assert "local had the largest share of 95.0%" in str(alarms[1])
    assert replay(steps[:499]).alarms == [] and replay([{"wins.global": 0.95, "wins.local": 0.05}] * 600).alarms == []
    assert replay([{"wins.global": 1.0}] * 600).alarms == [], "who is alone is no danger to others"


def equal_shares(relative, competing=1.0, experts=3):
    shares = {f"share.{number}": 1 / experts for number in range(experts)}
    return {**shares, "entropy.shares": relative * math.log(experts), "competing": competing}


def test_shares_that_stay_nearly_equal_are_an_alarm_once_they_compete():
    steps = [equal_shares(1.0, competing=0.0)] * 100 + [equal_shares(0.96)] * 200
    alarms = [str(alarm) for alarm in replay(steps).alarms]
    words = "the entropy of the experts' shares is 96.0% of its maximum over the last 50 steps, so that they hardly compete; lower temper"
    assert len(alarms) == 1 and alarms[0].startswith(f"step 150: {words}") and alarms[0].endswith("harder negatives")
    assert replay(steps[:149]).alarms == [], "50 competitive steps"
    assert replay([equal_shares(0.95)] * 600).alarms == [] and replay([equal_shares(1.0, competing=0.0)] * 600).alarms == []
    assert replay([equal_shares(1.0, experts=1) | {"entropy.shares": 0.0}] * 600).alarms == [], "who is alone has no rival"
    assert [alarm.step for alarm in replay([equal_shares(0.951, experts=2)] * 60).alarms] == [50]


def test_the_experts_of_a_router_that_starve_together_are_one_line():
    steps = [{"usage.gate.0": 0.999, "usage.gate.1": 0.001, "usage.gate.2": 0.0, "usage.layer2.0": 0.5, "usage.layer2.1": 0.5}] * 501
    monitor = replay(steps)
    words = "step 500: gate hardly selects expert 1 (0.10%), 2 (0.00%) in the last 500 steps, where 33.3% is uniform; raise load_balance"
    assert [str(alarm).startswith(words) for alarm in monitor.alarms] == [True]
    assert monitor.routers == {"gate": ["usage.gate.0", "usage.gate.1", "usage.gate.2"], "layer2": ["usage.layer2.0", "usage.layer2.1"]}


wins = st.lists(st.sampled_from([0.0, 0.5, 0.9, 0.95, 1.0]), min_size=1, max_size=60)


@given(wins)
def test_alarms_are_those_of_the_loop(values):
    steps = [{"wins.a": value, "wins.b": 0.0, "usage.gate.0": 1 - value, "usage.gate.1": value} for value in values]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_monitor, "WINDOW", 5)
        steps_of_alarms = sorted(alarm.step for alarm in replay(steps).alarms)
    kinds = {(step, name.split(".")[0]) for step, name in oracles.find_alarms(steps, 5)}  # a router's experts are one alarm
    assert steps_of_alarms == sorted(step for step, _ in kinds)


def test_what_was_kept_is_watched_as_if_nothing_had_happened(tmp_path):
    steps = [{"step": number, "wins.a": 0.96, "wins.b": 0.0, "loss": 1 / number} for number in range(1, 521)]
    lines = [(json.dumps(step) + "\n").encode() for step in steps]
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(lines) + b'{"step": 5')
    later = training_monitor.replay(training_monitor.read_metrics_prefix(path, sum(map(len, lines[:499]))))
    assert later.step == 499 and later.alarms == []
    assert [alarm.step for alarm in later.update(steps[499])] == [500]
    whole = training_monitor.replay(steps)
    for facts in steps[500:]:
        assert later.update(facts) == []
    assert later.alarms == whole.alarms and later["loss"].points() == whole["loss"].points()
    assert later["loss"].mean == whole["loss"].mean == pytest.approx(sum(step["loss"] for step in steps[20:]) / 500)
    steps_on_disk = [facts["step"] for facts in training_monitor.read_metrics(path)]
    assert steps_on_disk == list(range(1, 521)), "a line that is still being written does not count"
    assert list(training_monitor.read_metrics_prefix(tmp_path / "absent", 0)) == []


def test_a_training_is_found_finished_or_not(tmp_path):
    for folder in ("whole", ".half.partial/half"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "metrics.jsonl").write_text("")
    assert training_monitor.find_metrics(tmp_path / "whole") == tmp_path / "whole" / "metrics.jsonl"
    assert training_monitor.find_metrics(tmp_path / "half") == tmp_path / ".half.partial" / "half" / "metrics.jsonl"
    assert training_monitor.find_metrics(tmp_path / "whole" / "metrics.jsonl") == tmp_path / "whole" / "metrics.jsonl"
    for path, words in ((tmp_path, "has no metrics.jsonl"), (tmp_path / "other", "no such training")):
        with pytest.raises(ArtifactError, match=words):
            training_monitor.find_metrics(path)


def test_damaged_metrics_are_named(tmp_path):
    for content, words in ((b"", "is empty"), (b"[1]\n", ":1: expected the metrics"), (b"\xff\n", ":1: not UTF-8"),
                           (b'{"step": "1"}\n', ":1: expected"), (b'{"step": 1}\n\n', ":2: broken JSON"),
                           (b'{"step": %d}\n' % 10**400, ":1: expected")):  # fmt: skip
        (tmp_path / "metrics.jsonl").write_bytes(content)
        with pytest.raises(DataError, match=words):
            list(training_monitor.read_metrics(tmp_path / "metrics.jsonl"))


def test_what_is_no_number_is_left_aside_and_of_development_losses_the_lowest_is_the_best():
    monitor = replay([{"loss": float("nan"), "words": "x", "dev.fused.RR": 0.5, "tokens": 10**400}, {"dev.fused.RR": 0.5}])
    assert monitor.histories.keys() == {"dev.fused.RR"}
    assert monitor.best == {"dev.fused.RR": (0.5, 1)} and monitor.tokens_per_second is None
    names = ("dev.loss", "dev.local.loss", "dev.fused.nDCG@10")
    monitor = replay([dict.fromkeys(names, value) for value in (3.0, 2.0, 2.5)])
    assert monitor.best == {"dev.loss": (2.0, 2), "dev.local.loss": (2.0, 2), "dev.fused.nDCG@10": (3.0, 1)}


def test_a_loss_that_stays_at_that_of_equal_scores_is_an_alarm():
    steps = [{"loss.global": 2.75, "loss.local": 1.0, "uniform_loss": 2.772589}] * 300
    (alarm,) = map(str, replay(steps).alarms)
    words = "loss.global is 2.750 over the last 50 steps, and 2.773 is the loss if all 16 candidates have the same score"
    assert alarm.startswith(f"step 50: {words}") and "--temperature" in alarm and "--learning-rate" in alarm
    other = [{"loss.global": loss, "uniform_loss": 2.772589} for loss in (2.6, 0.1, 9.0)]
    for facts in (*other, {"loss.mlm": 2.75}, {"loss.global": 0.0, "uniform_loss": 0.0}):  # no candidates; one candidate
        assert replay([facts] * 100).alarms == []
    warm_up = [{"loss.global": 2.77, "uniform_loss": 2.772589, "learning_rate": float(step)} for step in range(600)]
    assert [alarm.step for alarm in replay(warm_up).alarms] == [500]
    level = [step | {"learning_rate": min(step["learning_rate"], 200.0)} for step in warm_up]
    assert [alarm.step for alarm in replay(level).alarms] == [202]


def pretraining_steps(steps, gains, rate=9.9e-4, part="decoder", every=50):
    """A pre-training of a constant rate whose bottleneck is measured every so many steps: `gains` repeats its last value."""
    for step in range(1, steps + 1):
        measured = {}
        if step % every == 0:
            value = gains[min(step // every, len(gains)) - 1]
            measured = {f"bottleneck_gain.{part}": value, "bottleneck_gain": value}
        yield {"step": step, "loss": 10.0, "learning_rate": 1e-4, training_monitor.DECODER_RATE: rate, **measured}


def test_a_decoder_that_does_not_use_its_vectors_is_an_alarm_once_it_has_learned():
    for gains, steps in (([0.0], 200), ([-0.004, 0.003], 200), ([0.0, 0.0, 0.05, 0.001], 300)):
        (alarm,) = training_monitor.replay(pretraining_steps(400, gains)).alarms
        assert alarm.step == steps, "measured twice and more, with the sum of rates above 0.1"
        assert "(decoder) nats per token" in alarm.message and "--group-rate decoder=RATE" in alarm.message


def test_a_decoder_that_uses_them_or_has_learned_little_or_owes_little_by_design_is_none_and_each_part_is_named_once():
    for gains, options in (([0.03], {}), ([0.0], {"rate": 1e-4}), ([0.0], {"part": "head"}), ([-0.01, 0.0, 0.03, 0.05, 0.08], {})):
        assert training_monitor.replay(pretraining_steps(600, gains, **options)).alarms == []
    steps = pretraining_steps(600, [0.0] * 6 + [0.5], part="sparse.query")
    both = (one | ({"bottleneck_gain.dense.query": 0.5} if "bottleneck_gain" in one else {}) for one in steps)
    (alarm,) = training_monitor.replay(both).alarms
    assert "(sparse.query)" in alarm.message and "dense" not in alarm.message


def test_a_spike_leaves_no_trace_in_a_mean_once_it_is_past():
    history = training_monitor.MetricHistory()
    for step, value in enumerate([1e20, *[2.0] * 600], 1):
        history.add(step, value)
    assert history.mean == 2.0
