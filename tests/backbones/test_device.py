"""Device and dtype selection: by compute capability on CUDA."""

import logging

import pytest
import torch

from moeir.backbones.device import resolve_device, select_device, select_dtype
from moeir.errors import UsageError
from moeir.kernels import precision
from moeir.kernels.precision import full_precision, has_native_bfloat16
from tests.architectures.folders import assert_refused


@pytest.fixture
def cards(monkeypatch):
    """`cards(count, capability)`: torch reports this many CUDA devices; returns the list of selected ones."""
    selected = []

    def pretend(count, capability=(9, 0)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A card")
        monkeypatch.setattr(torch.cuda, "set_device", selected.append)
        return selected

    return pretend


@pytest.mark.parametrize(
    ("name", "count", "device"),
    [("auto", 0, "cpu"), ("auto", 2, "cuda:0"), ("cuda", 2, "cuda:0"), ("cuda:1", 2, "cuda:1"), ("cpu", 2, "cpu"), ("cpu:0", 2, "cpu")],
)
def test_a_device_is_one_by_name_and_where_all_cuda_calls_go(cards, name, count, device):
    selected = cards(count)
    assert resolve_device(name) == device and selected == []
    assert select_device(name) == device
    assert selected == ([] if device == "cpu" else [device])


@pytest.mark.parametrize("name", ["cuda:2", "cuda:99", "cuda:-1", "meta", "gpu", ""])
def test_a_device_that_is_not_there_is_refused(cards, name):
    cards(2)
    assert_refused(UsageError, r"torch sees 2 CUDA devices|expected auto, cpu, cuda or cuda:N", select_device, name)


@pytest.mark.parametrize(
    ("capability", "dtype"), [((7, 5), torch.float32), ((8, 0), torch.bfloat16), ((8, 9), torch.bfloat16), ((9, 0), torch.bfloat16)]
)
def test_bfloat16_is_chosen_from_compute_capability_8_on_and_the_log_says_why(cards, caplog, capability, dtype):
    cards(2, capability)
    caplog.set_level(logging.INFO)
    assert select_dtype("auto", "cuda:1") is dtype and has_native_bfloat16("cuda:1") == (dtype is torch.bfloat16)
    message = caplog.messages[-1]
    assert f"cuda:1 (A card, compute capability {capability[0]}.{capability[1]})" in message
    assert message.startswith("dtype: bfloat16" if dtype is torch.bfloat16 else "dtype: float32")


def test_bfloat16_is_refused_where_a_device_has_none_and_allowed_on_any_processor(cards):
    cards(1, (7, 5))
    with pytest.raises(UsageError) as refused:
        select_dtype("bfloat16", "cuda:0")
    assert str(refused.value) == (
        "--dtype bfloat16: cuda:0 (A card, compute capability 7.5) has no bfloat16 units, "
        "expected compute capability 8.0 or more; use --dtype auto or float32"
    )
    assert select_dtype("bfloat16", "cpu") is torch.bfloat16


def test_int8_is_for_inference_on_a_processor_that_has_it(cards, monkeypatch):
    cards(1)
    monkeypatch.setattr("moeir.backbones.device.supports_int8", lambda: True)
    assert select_dtype("int8", "cpu", inference=True) is torch.int8
    monkeypatch.setattr("moeir.backbones.device.supports_int8", lambda: False)
    with pytest.raises(UsageError, match=r"--dtype int8: .* no instructions on this processor \(VNNI\); use --dtype auto"):
        select_dtype("int8", "cpu", inference=True)
    assert_refused(UsageError, r"--dtype int8: .* computed on a CPU only; use --dtype auto", select_dtype, "int8", "cuda:0", inference=True)
    for name in ("int8", "float16"):
        assert_refused(UsageError, f"--dtype {name}: expected auto, float32, bfloat16", select_dtype, name, "cpu")


@pytest.mark.parametrize("chosen", ["highest", "high", "medium"])
def test_full_precision_is_that_of_float32_whatever_was_chosen_and_leaves_it_chosen(chosen):
    """torch refuses to say by its older interface what holds, where that was last set to something else."""
    before = torch.get_float32_matmul_precision()
    settings = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    left, right = torch.randn(64, 300), torch.randn(300, 64)
    expected = left @ right
    torch.set_float32_matmul_precision(chosen)
    try:
        was = [setting.fp32_precision for setting in settings]
        with torch.autocast("cpu", dtype=torch.bfloat16), full_precision(torch.device("cpu")):
            assert [setting.fp32_precision for setting in settings] == ["ieee", "ieee"]
            assert torch.equal(left @ right, expected) and torch.backends.cuda.matmul.allow_tf32 is False
        assert [setting.fp32_precision for setting in settings] == was and torch.get_float32_matmul_precision() == chosen
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("maker", "amx", "avx512", "native"),
    [
        ("AuthenticAMD", False, True, True),
        ("GenuineIntel", False, True, False),
        ("GenuineIntel", True, True, True),
        ("?", False, False, False),
    ],
)
def test_a_processor_gets_bfloat16_where_its_products_are_faster(monkeypatch, tmp_path, maker, amx, avx512, native):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {maker}\n")
    monkeypatch.setattr(precision, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    precision._is_made_by_intel.cache_clear()
    assert has_native_bfloat16("cpu") is native
    assert select_dtype("auto", "cpu") is (torch.bfloat16 if native else torch.float32) and select_dtype("float32", "cpu") is torch.float32
    precision._is_made_by_intel.cache_clear()
