"""Parts of the Hub that the stages do not show one by one: errors of the disk, the card."""

import errno
import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.errors import HFValidationError

from moeir import hub
from moeir.errors import MoeirError, UsageError


def test_errors_of_the_disk_pass_and_others_are_one_line():
    with pytest.raises(OSError, match="No space left"), hub.describe_hub_errors("anna/came"):
        raise OSError(errno.ENOSPC, "No space left on device")
    message = r"^anna/came: .* failed \(two lines\); run the same command again to continue$"
    with pytest.raises(MoeirError, match=message) as failure, hub.describe_hub_errors("anna/came"):
        raise OSError("two\n\nlines")
    assert failure.value.exit_code == 1
    with pytest.raises(UsageError, match=r"^anna: not accepted: too short$"), hub.describe_hub_errors("anna"):
        raise HFValidationError("too short")


def test_a_card_keeps_the_measures_of_other_data_and_replaces_those_of_the_same(tmp_path, came_checkpoint):
    manifest = json.loads((came_checkpoint / "manifest.json").read_text())
    card, means = (came_checkpoint / "README.md").read_text(), {}
    for dataset, values in (("dev", [1.0, 0.0]), ("Owls, test", [1.0, 0.5]), ("Owls, test", [1.0, 1.0])):
        (tmp_path / "README.md").write_text(card)
        systems = {"fused": {"RR": {f"q{number}": value for number, value in enumerate(values)}}}
        card = hub.build_card({Path(tmp_path): manifest}, "anna/came", systems, dataset, None)
        means = {result.dataset_name: result.metric_value for result in ModelCard(card).data.eval_results}
    assert means == {"dev": 0.5, "Owls, test": 1.0}
    assert [result.dataset_type for result in ModelCard(card).data.eval_results] == ["dev", "owls-test"]
    assert card.count(hub.CARD_HEADING) == 1 and card.count("moeir pull") == 1 and "# A came retriever" in card
