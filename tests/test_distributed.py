"""Several processes train as one does: the same losses and weights, shared work; a process that fails or terminates is named."""

import os
import signal
import socket
import time
from functools import partial

import numpy as np
import pytest
import torch

from moeir import distributed
from moeir.architectures.base import Architecture, EncoderOutput
from moeir.distributed import _check_devices, destroy_process_group, init_process_group
from moeir.errors import DataError, MoeirError, OutOfMemory, UsageError
from moeir.mixtures import router
from moeir.representations.multivector import MultiVector
from moeir.training import objectives, retrieval_task, text_stream
from moeir.training.data_parallel import DataParallel
from moeir.training.token_cache import ShardSpec, TokenCache, shard_texts
from moeir.training.trainer import _sum_frozen_bytes
from tests.kill_points import fork
from tests.processes import (
    assert_same_training,
    change_trunk_of_process_1,
    free_port,
    read_metrics,
    reset_process_state,
    run_captured,
    run_processes,
)
from tests.training.toy_examples import write_training_files

FLOPS = "flops_query=1e-3,flops_document=1e-3"
CAME = ("came:shared_layers=2,local_dim=8,normalise=true", f"competitive:standardised=0.4,permuted=true,{FLOPS}")
TASER = ("taser:routing=token,every=1", "contrastive:load_balance=0.01,entropy_of=batch")
KINDS = {
    "came": CAME,
    "taser": TASER,
    "coil": ("coil", "contrastive"),
    "adapters": (f"{CAME[0]},adapters=4,shared_adapters=2", "competitive:standardised=0.4"),
    "routed adapters": ("taser:routing=token,every=1,adapters=4,experts=3,gradient=pair", TASER[1]),
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Texts of 1 to 13 words, examples of them, and a development set."""
    return write_training_files(tmp_path_factory.mktemp("shop"))


@pytest.fixture
def learn(shop, tiny_model_with_head, tiny_model_without_dropout, tmp_path, monkeypatch):
    """`learn(size, kind, *options)`: a training by so many processes -> its folder, and the result of each."""

    compute_loss = retrieval_task.RetrievalTask.compute_loss

    def learned(size, kind, *options, name=None, dropout=False, **troubles):
        arch, objective = KINDS[kind]
        output = tmp_path / (name or f"{kind}-{size}")
        sources = ("--train", shop / "train.jsonl", "--corpus", shop / "documents.tsv", "--queries", shop / "queries.tsv")
        sizes = ("--batch-size", 6, "--negatives", 2, "--steps", 2, "--learning-rate", 2e-4, "--dtype", "float32", "--device", "cpu")
        weights = tiny_model_with_head if dropout else tiny_model_without_dropout
        model = ("--model", weights, "--arch", arch, "--objective", objective, "--query-length", 12, "--document-length", 24)
        command = ("finetune", *model, *sources, *sizes, *options, "--output", output)

        def trained(rank):
            inject_fault(rank, size, tmp_path, **troubles)
            result = run_captured(*command)
            (tmp_path / "told").touch()
            return result

        monkeypatch.setattr(retrieval_task.RetrievalTask, "compute_loss", compute_loss)  # without the fault of an earlier training
        return output, run_processes(size, trained) if size > 1 else [trained(0)]

    return learned


def inject_fault(rank, size, room, *, killed=None, broken=None, stuck=None, dead=None, other=None, full=None):
    """Inject a fault: all killed at a step, a broken disk, a process asleep until another has reported it, killed alone, with other
    examples, or without memory."""
    outcome = retrieval_task.RetrievalTask.compute_loss

    def late(self, batch):
        if batch == killed:
            (room / f"{batch}-{rank}").touch()
            wait_until(lambda: len(list(room.glob(f"{batch}-*"))) == size)  # otherwise one would only report that the other has terminated
        if batch == killed or (batch == 1 and rank == dead):
            os.kill(os.getpid(), signal.SIGKILL)
        if batch == 1 and rank == full:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of ...")
        if batch == 1 and rank == stuck:
            wait_until((room / "told").exists)
        return outcome(self, batch)

    retrieval_task.RetrievalTask.compute_loss = late
    if rank == broken:
        text_stream.TextStream = raise_data_error
    if rank == other:
        retrieval_task.RetrievalTask.size = 7


def wait_until(until):
    """Wait for a condition, at most a minute."""
    began = time.monotonic()
    while not until() and time.monotonic() - began < 60:
        time.sleep(0.05)


def raise_data_error(*arguments, **options):
    raise DataError("the disk of process 1")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "came"])  # which four train
def test_two_processes_learn_what_one_does(kind, learn, monkeypatch):
    """Without randomness: no dropout, and the noise of a router is a constant. Two parts are encoded again, also where a part chooses few
    experts."""
    monkeypatch.setattr(router, "uniform_like", lambda logits: torch.full_like(logits, 0.5))
    options = ("--gradient-cache", 40, "--accumulate", 2) if kind in ("taser", "routed adapters") else ()
    alone, results = learn(1, kind, *options[2:])
    assert results[0]["code"] == 0, results
    both, results = learn(2, kind, *options)
    assert [one["code"] for one in results] == [0, 0], results
    assert results[1]["stderr"] == ""  # only the main process logs
    assert_same_training(alone, both)


def test_four_processes_with_a_development_set_parts_and_recomputation(learn, shop):
    dev = ("--dev-queries", shop / "queries.tsv", "--dev-qrels", shop / "dev.qrels", "--evaluate-every", 1)
    alone, results = learn(1, "came", *dev, "--accumulate", 2)
    assert results[0]["code"] == 0, results
    four, results = learn(4, "came", *dev, "--accumulate", 2, "--gradient-cache", 60, "--recompute")
    assert [one["code"] for one in results] == [0] * 4, results
    assert_same_training(alone, four)
    assert [line["dev.fused.nDCG@10"] for line in read_metrics(four) if "dev.fused.nDCG@10" in line]


def test_every_process_has_as_much_to_do():
    sizes = np.random.default_rng(1).integers(4, 180, 128)
    cache = TokenCache(np.arange(sizes.sum()).astype(np.int64), np.concatenate([[0], sizes.cumsum()]), np.zeros(128, dtype=np.int64))
    shares = [shard_texts(cache, range(128), "document", ShardSpec(rank, 3, 2000)) for rank in range(3)]
    token_counts = [sum(len(part.ids) for part in share.parts) for share in shares]
    assert sum(token_counts) == sizes.sum() == shares[0].total_tokens
    assert max(token_counts) - min(token_counts) <= 2 * 180
    assert all(len(part.ids) <= 2000 for share in shares for part in share.parts)
    ids = torch.cat([text for share in shares for part in share.parts for text in part.ids.split(part.lengths)])
    lengths = [length for share in shares for part in share.parts for length in part.lengths]
    texts = ids.split(lengths)
    assert torch.equal(torch.cat([texts[index] for index in shares[0].restore_order]), torch.from_numpy(cache.ids))


def test_a_training_is_continued_by_as_many_processes_as_began_it(learn):
    """Two go on with what two began; one is refused, and leaves it as it is."""
    options = ("--accumulate", 2, "--gradient-cache", 60, "--recompute")
    whole, _ = learn(2, "coil", *options, name="whole", dropout=True)
    options += ("--save-minutes", 1e-9)
    output, results = learn(2, "coil", *options, name="killed", killed=2, dropout=True)
    assert results == [None, None]
    _, results = learn(1, "coil", *options, name="killed", dropout=True)
    assert results[0]["code"] == 2 and not output.exists()
    assert "number of processes: expected 2, as for the first 1 steps, found 1; start as many to continue" in results[0]["stderr"]
    _, results = learn(2, "coil", *options, name="killed", dropout=True)
    assert "continuing after step 1" in results[0]["stderr"]
    _, results = learn(2, "coil", *options, name="killed", dropout=True)
    assert [one["code"] for one in results] == [0, 0] and "already made" in results[0]["stderr"] and results[1]["stderr"] == ""
    assert (output / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "corpus, broken, code, words",
    [
        ("nowhere.tsv", None, 3, ("nowhere.tsv: no such file",)),
        ("documents.tsv", 1, 3, ("process 1 of 2", "the disk of process 1")),
        ("-", None, 2, ("cannot share a pipe",)),
    ],
)
def test_an_error_is_told_once_by_the_main_process(corpus, broken, code, words, learn, shop):
    _, results = learn(2, "came", "--corpus", corpus if corpus == "-" else shop / corpus, broken=broken)
    assert [one["code"] for one in results] == [code, code]
    assert all(results[0]["stderr"].count(word) == 1 for word in words) and results[1]["stderr"] == ""


@pytest.mark.parametrize(
    ("fault", "options", "words"),
    [("stuck", ("--stuck-minutes", 0.1), "did not respond within 0.1 minutes"), ("dead", (), "has terminated")],
)
def test_one_that_does_not_come_or_dies_is_named(learn, fault, options, words):
    _, results = learn(2, "came", *options, name=fault, **{fault: 1})
    assert results[0]["code"] == 1 and words in results[0]["stderr"]
    assert f"process 1 of 2 ({os.uname().nodename}, process " in results[0]["stderr"]


@pytest.mark.parametrize("size", [1, 2])
def test_one_that_runs_out_of_memory_says_so_to_all_and_what_takes_less(size, learn):
    _, results = learn(size, "came", name="full", full=size - 1)
    assert [one["code"] for one in results] == [1] * size
    line = results[0]["stderr"].splitlines()[-1]
    assert line.startswith(f"error: process 1 of 2 ({os.uname().nodename}, process " if size == 2 else "error: out of memory (CUDA out of")
    assert results[0]["stderr"].count("Tried to allocate 2.50 GiB") == 1 and "terminated" not in results[0]["stderr"]
    assert line.endswith("total capacity of ...); lower --batch-size, set or lower --gradient-cache, add --recompute")
    assert size == 1 or results[1]["stderr"] == ""


def test_memory_for_a_collective_is_there_before_anyone_waits_in_it(monkeypatch):
    """A process that cannot allocate reports it; the others would otherwise wait for it in the collective."""

    def gathered(rank):
        world = init_process_group("cpu").with_timeout(0.2)
        outcomes = []
        for length in (10, 11, 5000):
            if rank == 1 and length == 5000:
                monkeypatch.setattr(distributed, "_gather", raise_out_of_memory)
            began = time.monotonic()
            try:
                with world.error_barrier():
                    received = world.all_gather([torch.full((length + rank,), float(rank))], "a test")
                outcomes.append([len(tensors[0]) for tensors in received])
            except (MoeirError, SystemExit) as problem:
                outcomes.append([type(problem).__name__, str(problem), time.monotonic() - began < 5])
        return outcomes

    first, second = run_processes(2, gathered)
    assert first[:2] == second[:2] == [[10, 11], [11, 12]]
    assert first[2][0] == "SharedError" and "out of memory" in first[2][1] and "process 1 of 2" in first[2][1] and first[2][2]
    assert second[2][0] == "SystemExit" and second[2][2]


def raise_out_of_memory(*arguments):
    raise OutOfMemory("out of memory on a device")


@pytest.mark.parametrize("dead", [None, 1])
def test_the_group_of_processes_ends_whoever_is_dead(dead):
    def left(rank):
        world = init_process_group("cpu").with_timeout(10)
        world.all_gather([torch.ones(3)], "a test")
        if rank == dead:
            os.kill(os.getpid(), signal.SIGKILL)
        if dead is not None:
            with pytest.raises(MoeirError, match="has terminated"):
                world.all_gather_object(None, "a test")
        began = time.monotonic()
        destroy_process_group()
        return [torch.distributed.is_initialized(), time.monotonic() - began < 5]

    assert run_processes(2, left) == [None if rank == dead else [False, True] for rank in range(2)]


def test_a_collective_that_another_process_leaves_names_that_process(monkeypatch):
    def gathered(rank):
        world = init_process_group("cpu").with_timeout(10)
        if rank == 1:  # after the lengths have been gathered
            gather = iter([distributed._gather])
            monkeypatch.setattr(distributed, "_gather", lambda *own: next(gather, lambda *_: os.kill(os.getpid(), signal.SIGKILL))(*own))
        with pytest.raises(MoeirError) as caught, world.error_barrier():
            world.all_gather([torch.ones(3)], "a test")
        return str(caught.value)

    first, second = run_processes(2, gathered)
    assert second is None and "process 1 of 2" in first and "has terminated" in first


@pytest.mark.parametrize("rank", [0, 1])
def test_ctrl_c_ends_the_wait_for_a_process_that_never_comes(rank):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
        address = listener.getsockname()
        if rank == 0:
            listener.close()
        else:
            listener.listen()
        child = fork(partial(wait_for_the_others, rank, address[1]))
        if rank == 0:
            wait_until(lambda: socket.socket().connect_ex(address) == 0)
        else:
            listener.accept()
        os.kill(child, signal.SIGINT)
        try:
            wait_until(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None)
        finally:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 130


def wait_for_the_others(rank, port):
    """In a child process: wait for another process of the training until Ctrl-C; its exit code is 130 then."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    reset_process_state()
    with pytest.raises(KeyboardInterrupt):
        init_process_group("cpu")
    return 130


def test_processes_have_a_device_each():
    _check_devices("auto", ["cuda:0 of one", "cuda:1 of one", "cuda:0 of two"])
    with pytest.raises(UsageError, match="processes 0 and 2 would share cuda:0 of one; start as many on a machine as it has CUDA devices"):
        _check_devices("cuda", ["cuda:0 of one", "cuda:1 of one", "cuda:0 of one"])
    with pytest.raises(UsageError, match=r"--device cuda:1: each of 2 processes takes the device of its number"):
        _check_devices("cuda:1", ["cuda:0 of one", "cuda:1 of one"])


def test_a_longer_document_of_another_process_is_gathered_whole():
    """The bound of this process's document lengths does not hold for the others, whose documents CUDA would truncate."""

    def bounded(rank):
        size = 3 + 3 * rank
        own = MultiVector(torch.ones(size, 2), torch.tensor([0, size]), max_length=size)
        gathered_local = objectives.all_gather_encoded(EncoderOutput({"local": own}), init_process_group("cpu"), "a step")["local"]
        return [gathered_local.max_length, gathered_local.starts.tolist()]

    assert run_processes(2, bounded) == [[None, [0, 3, 9]]] * 2


def test_tensors_of_any_type_and_length_are_gathered_by_all():
    def gathered(rank):
        world = init_process_group("cpu")
        own = [torch.arange(rank + 2), torch.full((rank, 3), rank + 0.5, dtype=torch.bfloat16), torch.zeros(0)]
        return [[part.tolist() for part in tensors] for tensors in world.all_gather(own, "a test")]

    expected = [[list(range(rank + 2)), [[rank + 0.5] * 3] * rank, []] for rank in range(3)]
    assert run_processes(3, gathered) == [expected] * 3


@pytest.mark.parametrize("batches", [[[0]], [[0, 1], [0]], [[0], [0, 1]]])
def test_gradients_are_summed_and_a_parameter_without_one_in_every_process_stays_without(batches):
    """The second parameter has one in process 1 alone, in the last batch of a step or in an earlier one."""

    def added(rank):
        parameters = [torch.nn.Parameter(torch.full((2,), float(rank))) for _ in range(3)]
        gradients = torch.tensor([1.0, rank]), torch.tensor([5.0, 6.0])
        used = [one if rank == 1 else [0] for one in batches]

        def compute_loss(batch):
            return sum((parameters[number] * gradients[number]).sum() for number in used[batch]), {"batch": batch}, 7

        parallel = DataParallel(compute_loss, parameters, init_process_group("cpu"))
        facts = [parallel.run_batch(number, batches=len(used), is_last=number + 1 == len(used)) for number in range(len(used))]
        return [[one.tolist() for one in parameters], facts, [None if one.grad is None else one.grad.tolist() for one in parameters]]

    expected = [[2.0, 1.0], [number / len(batches) for number in (5.0, 6.0)] if [0, 1] in batches else None, None]
    assert run_processes(2, added) == [[[[0.0, 0.0]] * 3, [[{"batch": number}, 7] for number in range(len(batches))], expected]] * 2


def test_frozen_weights_are_neither_sent_nor_summed_and_must_be_the_same():
    def trained(rank):
        torch.manual_seed(rank)
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        model[0].requires_grad_(False)
        frozen, world = model[0].weight.tolist(), init_process_group("cpu")
        parameters = [one for one in model.parameters() if one.requires_grad]
        parallel = DataParallel(lambda batch: (model(torch.ones(2)).sum(), {}, 1), parameters, world)
        parallel.run_batch(0)
        with pytest.raises(MoeirError if world.is_main else SystemExit) as caught:
            world.check_same({"the sum of frozen weights": _sum_frozen_bytes(model)})
        untouched = model[0].weight.tolist() == frozen and model[0].weight.grad is None
        return [untouched, model[1].weight.tolist(), model[1].bias.grad.tolist(), str(caught.value)]

    (untouched, weight, gradient, message), other = run_processes(2, trained)
    assert untouched and other[0] and [weight, gradient] == other[1:3] and gradient == [2.0, 2.0]
    assert message.startswith("process 1 (") and "the sum of frozen weights is " in message and "start all with the same" in message


def lack_parameters(self):
    """As in code whose model has a layer less, in process 1."""
    parameters = list(torch.nn.Module.parameters(self))
    return iter(parameters[1:] if os.environ.get("RANK") == "1" else parameters)


@pytest.mark.parametrize(
    "difference, words", [("data", "examples is"), ("trunk", "the digest of the trunk is"), ("code", "numbers to train is")]
)
def test_processes_that_differ_do_not_begin(difference, words, learn, tiny_model_without_dropout, tmp_path, monkeypatch):
    if difference == "trunk":
        change_trunk_of_process_1(tiny_model_without_dropout, tmp_path, monkeypatch)
    if difference == "code":
        monkeypatch.setattr(Architecture, "parameters", lack_parameters, raising=False)
    _, results = learn(2, "adapters" if difference == "trunk" else "came", other=1 if difference == "data" else None)
    assert [one["code"] for one in results] == [1, 1]
    assert all(word in results[0]["stderr"] for word in ("process 1 (", words, "start all with the same files and settings"))


def test_a_local_rank_that_a_cluster_sets_alone_is_one_process(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert init_process_group.__wrapped__("cpu").size == 1
