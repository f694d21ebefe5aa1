"""The C++ part of the pretended device: found out whether it is needed, compiled once, and loaded before torch is imported."""

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
    """Why neither a real device nor a pretended one can be had here."""


def loaded() -> ctypes.CDLL | None:
    """The guard, once `load` was called."""
    return _library[0] if _library else None


def load() -> ctypes.CDLL:
    """Compile the guard if that was not done yet, and load it into this process; Unavailable where that is not possible."""
    if not _library:
        if "torch" in sys.modules:
            raise Unavailable("torch is imported already, and the pretended device has to be there before it: run `pytest tests/device`")
        if (torch_folder() / "lib" / "libtorch_cuda.so").exists():
            raise Unavailable("this torch is built for CUDA and finds no card; the pretended device needs the CPU build")
        _library.append(ctypes.CDLL(str(compiled()), mode=ctypes.RTLD_GLOBAL))
    return _library[0]


def real_cards() -> int:
    """How many CUDA devices there are for the torch installed here, found out without importing it."""
    if not (torch_folder() / "lib" / "libtorch_cuda.so").exists():
        return 0
    try:
        driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    except OSError:
        return 0
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def torch_folder() -> Path:
    """Where torch is installed."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise Unavailable("torch is not installed")
    return Path(spec.origin).parent


def compiled() -> Path:
    """The compiled guard, in a cache folder named by torch's version and the source; several processes may ask at once."""
    torch = torch_folder()
    marks = f"{importlib.metadata.version('torch')} {torch} {sys.platform} {SOURCE.read_text(encoding='utf-8')}"
    cache = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(cache) if cache else Path(tempfile.gettempdir())) / f"moeir-tests-{os.getuid()}"
    place = folder / f"guard-{hashlib.sha256(marks.encode()).hexdigest()[:16]}.so"
    if place.exists():
        return place
    compiler = next((path for name in (os.environ.get("CXX", ""), *COMPILERS) if name and (path := shutil.which(name))), None)
    if compiler is None:
        raise Unavailable(f"no C++ compiler ({', '.join(COMPILERS)}) to build tests/device/guard.cpp with")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, made = tempfile.mkstemp(dir=folder, suffix=".so")
    os.close(handle)
    libraries = ["-L", f"{torch}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch}/lib"]
    command = [compiler, "-O1", "-shared", "-fPIC", "-std=c++20", "-I", f"{torch}/include", "-o", made, str(SOURCE), *libraries]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        os.unlink(made)
        raise Unavailable(f"{compiler} cannot build tests/device/guard.cpp: {done.stderr[-2000:]}")
    os.replace(made, place)  # whole or not at all
    return place
