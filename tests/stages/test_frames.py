"""How many of our functions stand between the command line and the first matrix product of a model: what a reader steps through."""

import sys
from pathlib import Path

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

import moeir as package

PACKAGE = str(Path(package.__file__).parent)


class FirstProduct(TorchDispatchMode):
    """Keeps the functions of the package that are running when the first matrix product is computed, the outermost last."""

    functions: tuple[str, ...] = ()

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        name = str(operator)
        if not self.functions and ("linear" in name or "mm" in name):
            frame, functions = sys._getframe(), list[str]()
            while frame := frame.f_back:
                if frame.f_code.co_filename.startswith(PACKAGE):
                    functions.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}")
            if "encoder.py:run_layers" in functions:  # not of a check before
                self.functions = tuple(functions)
        return operator(*arguments, **(options or {}))


def test_few_functions_stand_between_a_command_and_its_product(index, tiny_model_with_head, toy, tmp_path, moeir):
    (tmp_path / "train.jsonl").write_text('{"query_id": "t1", "positive_ids": ["owl"], "negative_ids": ["bat", "ant"]}\n')
    texts = ("--corpus", toy / "corpus.jsonl", "--queries", toy / "train-queries.jsonl", "--train", tmp_path / "train.jsonl")
    arch = ("--arch", "came:shared_layers=2", "--steps", 1, "--batch-size", 1, "--negatives", 1)
    commands = {
        18: ("finetune", "--model", tiny_model_with_head, *arch, *texts, "--output", tmp_path / "came"),
        17: ("search", "--index", index, "--queries", toy / "test-queries.tsv", "--output", tmp_path / "runs"),
    }
    for most, command in commands.items():
        with FirstProduct() as product:
            result = moeir(*command)
        if result.code:
            pytest.fail(result.stderr)
        assert product.functions[-1] == "cli.py:_exit_code" and len(product.functions) <= most, "\n".join(product.functions)
