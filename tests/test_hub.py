"""Parts of the Hub that the stages do not show one by one: the draw of a sample, differences, errors of the disk, the card."""

import errno
import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.errors import HFValidationError

from moeir import hub
from moeir.errors import MoeirError, UsageError
from moeir.records.runs import Run


def test_a_sample_is_drawn_by_its_seed_and_has_at_most_256_texts(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"_id": f"d{number}", "text": f"text {number}"}) + "\n" for number in range(1000)))
    samples = {seed: [text.id for text in hub.draw_texts([corpus], tmp_path, "checkpoint", seed)] for seed in (1, 2)}
    assert samples[1] == [text.id for text in hub.draw_texts([corpus], tmp_path, "checkpoint", 1)]
    assert len(set(samples[1])) == hub.SAMPLE_SIZE == 256 and samples[1] != samples[2]


def test_a_difference_is_that_of_scores_whatever_the_order_of_near_ties():
    stored = Run.from_hits({"q": {"a": 2.0, "b": 1.999}, "r": {"a": -4.0}})
    assert hub.compute_difference(stored, Run.from_hits({"q": {"b": 2.0, "a": 1.999}, "r": {"a": -4.0}})) == 0
    assert hub.compute_difference(stored, Run.from_hits({"q": {"a": 2.0, "b": 1.999}, "r": {"a": -3.0}})) == 0.25
    for other in ({"q": {"a": 2.0}, "r": {"a": -4.0}}, {"q": {"a": 2.0, "b": 1.999}}, {"q": {"a": 2.0, "b": 1.999}, "s": {"a": -4.0}}):
        assert hub.compute_difference(stored, Run.from_hits(other)) == float("inf")
    nothing = Run.from_hits({"q": {"a": 0.0}})
    assert hub.compute_difference(nothing, nothing) == 0
    assert hub.compute_difference(nothing, Run.from_hits({"q": {"a": 1.0}})) == float("inf")


def test_errors_of_the_disk_pass_and_others_are_one_line():
    with pytest.raises(OSError, match="No space left"), hub.describe_hub_errors("anna/came"):
        raise OSError(errno.ENOSPC, "No space left on device")
    message = r"^anna/came: .* failed \(two lines\); run the same command again to continue$"
    with pytest.raises(MoeirError, match=message) as failure, hub.describe_hub_errors("anna/came"):
        raise OSError("two\n\nlines")
    assert failure.value.exit_code == 1
    with pytest.raises(UsageError, match=r"^--repo anna: not accepted: too short$"), hub.describe_hub_errors("anna"):
        raise HFValidationError("too short")


def test_a_card_keeps_the_measures_of_other_data_and_replaces_those_of_the_same(tmp_path, came_checkpoint):
    manifest = json.loads((came_checkpoint / "manifest.json").read_text())
    card, means = (came_checkpoint / "README.md").read_text(), {}
    (tmp_path / "moeir.json").write_bytes((came_checkpoint / "moeir.json").read_bytes())
    for dataset, values in (("dev", [1.0, 0.0]), ("Owls, test", [1.0, 0.5]), ("Owls, test", [1.0, 1.0])):
        (tmp_path / "README.md").write_text(card)
        systems = {"fused": {"RR": {f"q{number}": value for number, value in enumerate(values)}}}
        arguments = {"dataset": dataset, "license": None, "commands": ["moeir init"]}
        card = hub.build_card({Path(tmp_path): manifest}, None, "anna/came", systems, **arguments)
        means = {result.dataset_name: result.metric_value for result in ModelCard(card).data.eval_results}
    assert means == {"dev": 0.5, "Owls, test": 1.0}
    assert [result.dataset_type for result in ModelCard(card).data.eval_results] == ["dev", "owls-test"]
    assert card.count(hub.CARD_HEADING) == 1 and card.count("moeir init\n") == 1 and "# A came retriever" in card
