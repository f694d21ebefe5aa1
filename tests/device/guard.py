"""The C++ part of the fake CUDA device: checks whether it is needed, compiles it once, and loads it before torch is imported."""

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("guard.cpp")
COMPILERS = ("c++", "g++", "clang++")
_library: list[ctypes.CDLL] = []


class Unavailable(Exception):
    """Neither a real device nor the fake one is available; the message says why."""


def loaded_library() -> ctypes.CDLL | None:
    """The guard library after `load`, else None."""
    return _library[0] if _library else None


def load() -> ctypes.CDLL:
    """Compile the guard if needed and load it into this process; Unavailable if that is impossible."""
    if not _library:
        if "torch" in sys.modules:
            raise Unavailable("torch is already imported, and the fake device must be loaded before it: run `pytest tests/device`")
        if (torch_folder() / "lib" / "libtorch_cuda.so").exists():
            raise Unavailable("this torch is built for CUDA and finds no GPU; the fake device needs the CPU build")
        _library.append(ctypes.CDLL(str(compile_guard()), mode=ctypes.RTLD_GLOBAL))
    return _library[0]


def real_cards() -> int:
    """Number of CUDA devices that the installed torch can use, without importing it."""
    if not (torch_folder() / "lib" / "libtorch_cuda.so").exists():
        return 0
    try:
        driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    except OSError:
        return 0
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def torch_folder() -> Path:
    """The folder where torch is installed."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise Unavailable("torch is not installed")
    return Path(spec.origin).parent


def compile_guard() -> Path:
    """Path of the compiled guard in a cache folder, named by a digest of torch's version and the source; safe for concurrent processes."""
    torch = torch_folder()
    key = f"{importlib.metadata.version('torch')} {torch} {sys.platform} {SOURCE.read_text(encoding='utf-8')}"
    cache = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(cache) if cache else Path(tempfile.gettempdir())) / f"moeir-tests-{os.getuid()}"
    library = folder / f"guard-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    if library.exists():
        return library
    compiler = next((path for name in (os.environ.get("CXX", ""), *COMPILERS) if name and (path := shutil.which(name))), None)
    if compiler is None:
        raise Unavailable(f"no C++ compiler ({', '.join(COMPILERS)}) to build tests/device/guard.cpp with")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, built = tempfile.mkstemp(dir=folder, suffix=".so")
    os.close(handle)
    libraries = ["-L", f"{torch}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch}/lib"]
    command = [compiler, "-O1", "-shared", "-fPIC", "-std=c++20", "-I", f"{torch}/include", "-o", built, str(SOURCE), *libraries]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        os.unlink(built)
        raise Unavailable(f"{compiler} cannot build tests/device/guard.cpp: {completed.stderr[-2000:]}")
    os.replace(built, library)  # atomic
    return library
