"""PyTorch on the GPU of a cuda backend; all code of a comparison that needs a GPU is here."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from opbench.backend.base import LibraryBackend
from opbench.errors import EnvironmentFault
from opbench.paths import pip_install
from opbench.timing.clock import Launch

if TYPE_CHECKING:
    from torch import Tensor

SECOND_SIGNAL_S = 5.0
"""Seconds until a second signal, for a compiler that catches the first one."""

MAX_MESSAGE_CHARACTERS = 120
"""Most characters of an error's message in a table."""

Result = TypeVar("Result")


# The installed PyTorch ----------------------------------------------------------------------------------------------


def find_torch(*, gpu: bool = True) -> ModuleType:
    """Return the torch module.

    Raise EnvironmentFault without PyTorch, or if PyTorch sees no GPU although `gpu` is true.
    """
    try:
        import torch
    except ImportError as error:
        raise EnvironmentFault(
            f"--compare torch: PyTorch cannot be imported ({error}); install PyTorch: {pip_install('torch')}",
            kind="missing-package",
            subject="torch",
        ) from None
    if gpu and not torch.cuda.is_available():
        raise EnvironmentFault(
            f"--compare torch: PyTorch {torch.__version__} sees no GPU; install a build of PyTorch for the CUDA "
            "version that nvidia-smi shows, or remove --compare torch",
            kind="no-gpu",
            subject="torch",
            value=torch.__version__,
        )
    module_type: ModuleType = torch
    return module_type


@contextlib.contextmanager
def precision_settings(torch: ModuleType, precision: str) -> Iterator[None]:
    """Allow TF32 if the precision is tf32, and let cuDNN try its algorithms; restore both settings afterwards.

    In float64, which is computed once and never timed, cuDNN is off: it would spend seconds on trying
    algorithms.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        previous = (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.enabled)
        matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
        cudnn.benchmark, cudnn.enabled = True, precision != "f64"
        try:
            yield
        finally:
            matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.enabled = previous


def versions_of(torch: ModuleType) -> dict[str, str]:
    """Return the versions of libraries that affect a comparison."""
    cudnn = torch.backends.cudnn.version()
    versions = {"PyTorch": torch.__version__, "CUDA": torch.version.cuda, "cuDNN": cudnn}
    return {name: str(version) for name, version in versions.items() if version}


def on_one_line(error: Exception) -> str:
    """Return an error in one line: its type and as many sentences of its message's first line as are short."""
    first_line = (str(error).strip() or "no reason given").splitlines()[0]
    if len(first_line) > MAX_MESSAGE_CHARACTERS:
        start = first_line[:MAX_MESSAGE_CHARACTERS]
        sentences, end, _ = start.rpartition(". ")
        first_line = sentences + "." if end else start.rpartition(" ")[0] + " …"
    return f"{type(error).__name__}: {first_line}"


class TimeLimitExceeded(BaseException):
    """The time limit has passed.

    It is no Exception, so that a compiler that catches every Exception does not catch it.
    """


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimitExceeded in code that takes longer than `seconds`.

    There is no limit for 0 or outside of the main thread.
    """
    if not seconds or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(signal_number: int, frame: FrameType | None) -> None:
        raise TimeLimitExceeded

    previous_handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, SECOND_SIGNAL_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)


# The GPU ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CapturedGraph(Generic[Result]):
    """A call of PyTorch and the CUDA graph that was captured from it."""

    replay: Launch
    """Enqueues the graph on the backend's stream."""
    result: Result
    """The tensors that the call returned; each replay overwrites them."""
    call: Callable[[], Result]
    """The captured call, which keeps the memory that the graph reads alive."""


class TorchGpu:
    """PyTorch on the GPU and the stream of a cuda backend."""

    device = "cuda"

    def __init__(self, backend: LibraryBackend) -> None:
        self.torch = find_torch()
        self.stream = self.torch.cuda.ExternalStream(backend.stream_handle)
        self._side = self.torch.cuda.Stream()

    def place(self, array: np.ndarray) -> Tensor:
        """Copy an array to the GPU."""
        tensor: Tensor = self.torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
        return tensor

    def on_stream(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which PyTorch's work goes to the backend's stream."""
        context: contextlib.AbstractContextManager[object] = self.torch.cuda.stream(self.stream)
        return context

    def warm_up(self, call: Callable[[], object], calls: int) -> None:
        """Run a call several times on a new stream, as PyTorch requires before a capture on that stream.

        Each call has its own stream: cuBLAS has one workspace per stream, and a workspace in the memory of another
        call's graph would be freed with that graph.
        """
        cuda = self.torch.cuda
        self._side = cuda.Stream()
        self._side.wait_stream(cuda.current_stream())
        with cuda.stream(self._side):
            for _ in range(calls):
                call()
        cuda.current_stream().wait_stream(self._side)
        cuda.synchronize()

    def capture(self, call: Callable[[], Result]) -> CapturedGraph[Result]:
        """Capture the launches of a call as one CUDA graph, after `warm_up`."""
        cuda = self.torch.cuda
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, stream=self._side):
            result = call()

        def replay() -> None:
            with cuda.stream(self.stream):
                graph.replay()

        return CapturedGraph(replay, result, call)

    def allocated_bytes(self) -> int:
        """Return the bytes of GPU memory that are allocated now."""
        return int(self.torch.cuda.memory_allocated())

    def peak_bytes(self, call: Callable[[], object], start_bytes: int | None = None) -> int:
        """Return the most bytes that are allocated during a call, in addition to those before the call.

        Libraries allocate a workspace for each stream: call once on the same stream first.
        """
        self.synchronize()
        self.torch.cuda.reset_peak_memory_stats()
        start_bytes = self.allocated_bytes() if start_bytes is None else start_bytes
        call()
        self.synchronize()
        return int(self.torch.cuda.max_memory_allocated()) - start_bytes

    def synchronize(self) -> None:
        """Wait for all work of the GPU."""
        self.torch.cuda.synchronize()

    def release(self) -> None:
        """Return unused GPU memory to the driver."""
        release_unused_memory(self.torch)


def release_unused_memory(torch: ModuleType) -> None:
    """Return unused GPU memory to the driver."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
