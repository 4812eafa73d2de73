"""The kernel table of a step: torch.profiler around a few steps after the timed rounds, and its trace by operation."""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pytest_accel.measure.device import CpuDevice, CudaDevice, Device
from pytest_accel.measure.rounds import Ranks, Step, in_bursts
from pytest_accel.stats.kernels import LAYOUT, LOADER, KernelRow, KernelTable
from pytest_accel.stats.quantities import clipped, seconds

LEAST_STEPS = 3
MOST_STEPS = ((20, 2.0), (200, 0.3))  # within so many seconds; the trace of more takes long to read
LIMIT_S = 20.0  # of a benchmark, with reading the trace
MAX_TRACE_BYTES = 300 * 2**20  # about 10 s of reading
WINDOW = "pytest-accel profile"  # name of the annotation around the steps that count
MOST_OVERHEAD_S = 5e-6  # of the profiler, an operator
_LONGEST_NAME = 70
Event = Mapping[str, Any]


def profile_step(
    step: Step, device: Device, ranks: Ranks, *, step_s: float, burst: int = 1
) -> tuple[KernelTable | None, str]:
    """Return the kernel table of a few steps, or why there is none.

    All ranks take equally many steps; rank 0 profiles them. A step without torch has no table.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(device, CpuDevice | CudaDevice):
        return None, ""
    slowest_s, began_s = ranks.slowest(step_s), time.perf_counter()
    host = isinstance(device, CpuDevice)
    steps = in_bursts(_enough_steps(slowest_s), burst)
    before = steps if host or burst > 1 else 1  # until no batch is left that was made ready in the meantime
    if (before + steps) * slowest_s > LIMIT_S / 2:
        return None, f"no kernel table: {before + steps} steps take longer than {seconds(LIMIT_S / 2)}"
    # Two profilers in one process end each other.
    is_profiled = torch.autograd._profiler_enabled()  # noqa: SLF001 - torch offers no public question
    tracer = None
    try:
        for _ in range(before - 1):
            step()
            if ranks.size == 1 and time.perf_counter() - began_s > LIMIT_S / 4:
                break
        tracer = None if is_profiled or ranks.rank else _started(torch, device, shapes=ranks.size > 1)
        ranks.barrier()
        step()  # the first one under the profiler loads its library
        device.synchronize()
        with torch.profiler.record_function(WINDOW):
            window_s = time.perf_counter()
            for done in range(1, steps + 1):
                step()
                if ranks.size == 1 and time.perf_counter() - began_s > LIMIT_S / 2:
                    steps = done
                    break
            device.synchronize()
            profiled_s = (time.perf_counter() - window_s) / steps
    except Exception as error:
        if ranks.size > 1:  # the others wait in its collectives
            raise
        return None, f"no kernel table: the step failed under the profiler: {error!r}"
    finally:
        is_whole = tracer is None or _stop(tracer)
    if tracer is None or not is_whole:
        was_other = is_profiled or not is_whole
        return None, "no kernel table: another profiler runs in this process" if was_other else ""
    try:
        events = _events(tracer, left_s=LIMIT_S - (time.perf_counter() - began_s))
    except (RuntimeError, OSError, ValueError) as error:
        return None, f"no kernel table: {error}"
    table = table_of(events, host=host, steps=steps, step_s=step_s, profiled_s=profiled_s)
    return table, "" if table or host else "no kernel table: the profiler saw no kernel"


def _enough_steps(step_s: float) -> int:
    return max(LEAST_STEPS, *(min(most, int(limit_s / step_s)) for most, limit_s in MOST_STEPS))


def _started(torch: Any, device: Device, *, shapes: bool) -> Any:  # noqa: ANN401 - torch is imported lazily
    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CPU, kinds.CUDA] if isinstance(device, CudaDevice) else [kinds.CPU]
    tracer = torch.profiler.profile(activities=activities, record_shapes=shapes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tracer.start()
    return tracer


def _stop(tracer: Any) -> bool:  # noqa: ANN401 - torch.profiler.profile
    """Return whether it ran until now: a profiler that the step starts and ends also ends it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tracer.stop()
        except RuntimeError:
            return False
    return True


def _events(tracer: Any, *, left_s: float) -> list[Event]:  # noqa: ANN401 - torch.profiler.profile
    """Return the complete events of the trace, or raise ValueError where reading it takes too long."""
    with tempfile.TemporaryDirectory(prefix="pytest-accel-") as folder:
        path = Path(folder) / "trace.json"
        tracer.export_chrome_trace(str(path))
        size = path.stat().st_size
        if size > MAX_TRACE_BYTES * min(1.0, left_s / LIMIT_S):
            raise ValueError(
                f"a trace of {size / 2**20:.0f} MiB takes longer than {seconds(LIMIT_S)} to read"
            )
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    return [event for event in found["traceEvents"] if event.get("ph") == "X"]


# --- a trace as a table ------------------------------------------------------------------------------


class Span(NamedTuple):
    """A kernel on a device, or an operator without those that it called; microseconds."""

    begin: float
    end: float
    operation: str
    kernel: str
    waits: bool = False  # a collective or a copy: it takes only time in which nothing computes
    calls: int = 1  # 0: a later part of an operator


@dataclass(slots=True)
class Call:
    """An operator or an annotation, with what its callers say of it."""

    name: str
    begin: float
    end: float
    known: str = ""  # the kind of the outermost caller that has one
    outer: str = ""  # the outermost caller's name
    backward: bool = False
    compiled: bool = False
    own: float = 0.0  # until where its own time was given away
    counted: bool = False


def table_of(
    events: Iterable[Event], *, host: bool, steps: int, step_s: float, profiled_s: float
) -> KernelTable | None:
    """Return the table of the steps inside the window of a trace, by operator on the host; None where nothing ran.

    The host's idle time is that of the window, and a device's what its kernels leave of `step_s`.
    """
    events = sorted(events, key=lambda event: (event["ts"], -event["dur"]))
    window = next(
        (event for event in events if event["name"] == WINDOW and event["cat"] == "user_annotation"), None
    )
    if window is None:
        return None
    begin, end = window["ts"], window["ts"] + window["dur"]
    calls, own = _calls(events, window["tid"])
    kernels = [event for event in events if event["cat"] in {"kernel", "gpu_memcpy", "gpu_memset"}]
    if not (host or kernels):
        return None
    if not host:
        spans = [
            *(_kernel_span(event, calls.get(event.get("args", {}).get("External id"))) for event in kernels),
            # The host's wait for a batch: idle time of the device whose reason is known.
            *(
                Span(event["ts"], event["ts"] + event["dur"], LOADER, plain(event["name"]), waits=True)
                for event in events
                if event["tid"] == window["tid"]
                and event["cat"] == "user_annotation"
                and _first(_KINDS, event["name"]) == LOADER
            ),
        ]
    else:
        spans = [*own, *(_gloo_span(event) for event in events if event["name"].startswith("gloo:"))]
    spans = [span for span in spans if begin <= span.begin < end]
    # Calls, microseconds, those beside computing, parts after a call.
    rows: dict[tuple[str, str], list[float]] = {}
    for span, exposed in zip(spans, exposed_us(spans), strict=True):
        sums = rows.setdefault((span.operation, span.kernel), [0.0, 0.0, 0.0, 0.0])
        sums[0] += span.calls
        sums[1] += exposed
        sums[2] += max(0.0, span.end - span.begin - exposed) if span.waits else 0.0
        sums[3] += not span.calls
    calls_of_step = sum(count for count, *_ in rows.values()) / steps
    if not calls_of_step:
        return None
    # A kernel is timed by its device; the profiler's own work of an operator lies in the one that called it, or in idle time.
    overhead_s = min(MOST_OVERHEAD_S, max(0.0, profiled_s - step_s) / calls_of_step) if host else 0.0
    of_step = [
        KernelRow(
            operation=operation,
            kernel=kernel,
            count=count / steps,
            seconds=max(0.0, us * 1e-6 - parts * overhead_s) / steps,
            overlapped_s=hidden_us * 1e-6 / steps,
        )
        for (operation, kernel), (count, us, hidden_us, parts) in rows.items()
    ]
    if not host:
        return KernelTable.of(of_step, step_s=step_s)
    busy_s = sum(us for _, us, *_ in rows.values()) * 1e-6 / steps
    outermost = calls_of_step - sum(parts for *_, parts in rows.values()) / steps
    return KernelTable.of(
        of_step, step_s=step_s, idle_s=max(0.0, profiled_s - busy_s - outermost * overhead_s)
    )


def exposed_us(spans: Sequence[Span]) -> list[float]:
    """Return the time of each span so that all sum to the time in which any ran.

    Those that run at once share it evenly; a span that waits has no share while another computes.
    """
    edges = sorted(
        (at, is_begin, index)
        for index, span in enumerate(spans)
        for at, is_begin in ((span.begin, True), (span.end, False))
        if span.end > span.begin
    )
    found, running, before = [0.0] * len(spans), set[int](), 0.0
    for at, is_begin, index in edges:
        if running and at > before:
            sharing = [each for each in running if not spans[each].waits] or list(running)
            for each in sharing:
                found[each] += (at - before) / len(sharing)
        before = at
        (running.add if is_begin else running.discard)(index)
    return found


def _calls(events: Sequence[Event], main: object) -> tuple[dict[object, Call], list[Span]]:
    """Return all operators by the id that their kernels have, and the main thread's own time in each of them."""
    by_id: dict[object, Call] = {}
    stacks: dict[object, list[Call]] = {}
    forward: dict[object, str] = {}  # kinds by the sequence number of autograd
    own: list[Span] = []

    def give(call: Call, until: float, thread: object) -> None:
        if thread == main and until > call.own and not _TRANSPARENT.match(call.name):
            operation, first = _operation(call, call.name), not call.counted
            own.append(Span(call.own, until, operation, plain(call.name), calls=int(first)))
            call.counted = True
        call.own = max(call.own, until)

    for event in events:
        name = event["name"]
        if event["cat"] != "cpu_op" and not (event["cat"] == "user_annotation" and _ANNOTATIONS.match(name)):
            continue
        arguments, thread = event.get("args", {}), event["tid"]
        call = Call(name, event["ts"], event["ts"] + event["dur"], own=event["ts"])
        stack = stacks.setdefault(thread, [])
        while stack and stack[-1].end <= call.begin:
            give(stack[-1], stack.pop().end, thread)
        if stack:
            give(stack[-1], call.begin, thread)
            stack[-1].own = call.end
        _inherit(call, stack[-1] if stack else None)
        number = arguments.get("Sequence number")
        if number is not None and not call.backward:
            forward[number] = call.known
        elif number is not None and forward.get(number) == ATTENTION:
            call.known = ATTENTION  # of several operators, whose backward are apart
        stack.append(call)
        if "External id" in arguments:
            by_id[arguments["External id"]] = call
    for thread, stack in stacks.items():
        while stack:
            give(stack[-1], stack.pop().end, thread)
    return by_id, own


def _inherit(call: Call, caller: Call | None) -> None:
    name = plain(call.name)
    if caller is not None:
        call.known, call.outer = caller.known, caller.outer
        call.backward, call.compiled = caller.backward, caller.compiled
    call.backward = call.backward or "ackward" in call.name
    call.compiled = call.compiled or bool(_COMPILED.search(call.name))
    call.known = call.known or ("" if _FUSED.match(name) else _first(_KINDS, name))
    if not (call.outer or _TRANSPARENT.match(call.name) or _COMPILED.search(call.name)):
        call.outer = name


def _operation(call: Call | None, kernel: str) -> str:
    """Return the operation of a kernel and its operator, where that is known, or of the operator itself."""
    if call and call.known:
        found = LAYOUT if call.known == CONVOLUTION and _FAMILIES[LAYOUT].search(kernel) else call.known
    elif fused := _FUSED.match(kernel):
        found = fused[1]
    elif call and not call.compiled:
        found = call.outer or plain(call.name)
    else:
        found = _first(_FAMILIES, kernel) or (COMPILED_REGION if call else short_kernel(kernel))
    if call is None or not call.backward or found in _UNDIRECTED or "backward" in found:
        return found
    part = next((part for word, part in _CONVOLUTION_PARTS if word in kernel.lower()), "")
    return f"{found} backward{part if found == CONVOLUTION else ''}"


def _kernel_span(event: Event, call: Call | None) -> Span:
    name, begin = str(event["name"]), event["ts"]
    waits, arguments = event["cat"] != "kernel", event.get("args", {})
    if waits:
        copied = name.partition("(")[0].strip().replace("Memcpy", "copy")
        operation = "memset" if event["cat"] == "gpu_memset" else copied
    elif collective := _COLLECTIVE.search(name):
        waits = True
        elements = max(arguments.get("In msg nelems", 0), arguments.get("Out msg nelems", 0))
        size = elements * _BYTES.get(str(arguments.get("dtype")), 4)
        operation = _collective(collective[1], size)
    else:
        operation = _operation(call, name)
    return Span(begin, begin + event["dur"], operation, short_kernel(name), waits)


def _gloo_span(event: Event) -> Span:
    dims, kinds = (event.get("args", {}).get(name, []) for name in ("Input Dims", "Input type"))
    size = sum(
        math.prod(length for length in shape if isinstance(length, int)) * _BYTES.get(str(kind), 4)
        for shape, kind in zip(dims, kinds, strict=False)
    )
    begin, name = event["ts"], str(event["name"])
    return Span(begin, begin + event["dur"], _collective(name.removeprefix("gloo:"), size), name, waits=True)


def _collective(kind: str, size: int) -> str:
    """Return the kind with the power of two that its messages do not exceed, where the trace has their size."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower()
    if size <= 0:
        return name
    power = max(0, (size - 1).bit_length())
    unit, shift = next(
        (unit, shift) for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)) if power >= shift
    )
    return f"{name} up to {1 << (power - shift)} {unit}"


# --- names -------------------------------------------------------------------------------------------

CONVOLUTION, ATTENTION, COMPILED_REGION = "convolution", "attention", "compiled region"
_UNDIRECTED = frozenset({"optimizer", LOADER, "copy", LAYOUT})
_CONVOLUTION_PARTS = (("wgrad", " weights"), ("dgrad", " data"))
_EVALUATED = "autograd::engine::evaluate_function: "
_ANNOTATIONS = re.compile(r"Optimizer\.|enumerate\(DataLoader\)")
_TRANSPARENT = re.compile(r"c10d::|record_param_comms|nccl:|gloo:")  # their time is that of the collective
_COMPILED = re.compile(
    r"Torch-Compiled Region|CompiledFunction|CompiledFxGraph|TorchDynamo|AOTDispatcher|Pregraph"
)
_FUSED = re.compile(r"triton_(?!tem_)[a-z]+_fused_(\w+?)_?\d*$")  # triton_poi_fused_add_gelu_3
_COLLECTIVE = re.compile(
    r"[nr]ccl(?:Dev)?Kernel_?(AllReduce|AllGather|ReduceScatter|Broadcast|AllToAll|SendRecv|Reduce)",
    re.IGNORECASE,
)
_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "unsigned char", "signed char", "bool"), 1),
    **dict.fromkeys(("Half", "BFloat16", "c10::Half", "c10::BFloat16"), 2),
    **dict.fromkeys(("Double", "Long", "double", "long int"), 8),
}


def _patterns(table: Mapping[str, str]) -> dict[str, re.Pattern[str]]:
    return {operation: re.compile(pattern, re.IGNORECASE) for operation, pattern in table.items()}


def _first(patterns: Mapping[str, re.Pattern[str]], name: str) -> str:
    return next((operation for operation, pattern in patterns.items() if pattern.search(name)), "")


# Operators by name, without namespace and `Backward0`; the first that matches.
_KINDS = _patterns(
    {
        "optimizer": r"^Optimizer\.",
        LOADER: r"^enumerate\(DataLoader\)",
        ATTENTION: r"attention|flash_?attn|fmha|sdpa",
        CONVOLUTION: r"(^|_)(slow_)?conv(\d|_|olution|$)",
        "matrix product": r"(^|_)(linear|matmul|mm|bmm|addmm|baddbmm|einsum|mv|addmv)(_|$)",
        "batch norm": r"batch_?norm",
        "layer norm": r"layer_?norm",
        "softmax": r"softmax",
        "pooling": r"pool(ing)?(\d|_|$)",
        "embedding": r"embedding",
        "copy": r"^(copy_|to|_to_copy|contiguous|clone)$",
    }
)
# Kernels whose operator is not known, of graph replays and compiled regions; the first that matches.
_FAMILIES = _patterns(
    {
        "attention backward": r"(flash|fmha|sdpa|attn|attention).*(bwd|bprop|backward)|fmha_cutlassB|bwd.*attn",
        ATTENTION: r"flash_|flash::|FlashAttn|fmha|sdpa|attention|attn",
        "convolution backward weights": r"wgrad",
        "convolution backward data": r"dgrad",
        LAYOUT: r"nchw_?to|nhwc_?to",  # cuDNN converts what is not channels last
        CONVOLUTION: r"fprop|winograd|implicit_(con|gemm)|convol|conv\dd|conv_depthwise",
        "batch norm backward": r"(batch_?norm|bn_).*(bw|backward)",
        "batch norm": r"batch_?norm|(^|_|::)bn_",
        "layer norm backward": r"layer_?norm.*(grad|backward)|GammaBetaBackward",
        "layer norm": r"layer_?norm|RowwiseMoments",
        "softmax backward": r"soft_?max.*backward",
        "softmax": r"soft_?max",
        "pooling": r"(max|avg|average)_?pool",
        "embedding": r"embedding|indexSelect",
        "optimizer": r"multi_tensor_apply|(^|_|::)adam|(^|_|::)sgd|(^|_|::)lamb",
        "matrix product": r"gemm|gemv|nvjet|cutlass|xmma|splitK|Cijk_|triton_tem_|cublas",
        "copy": r"direct_copy|copy_kernel|CatArray",
        "reduction": r"^(?!triton).*reduce_",
        "elementwise": r"^(?!triton).*elementwise",
    }
)
# What a template is instantiated with, where that says more than its own name.
_DETAIL = re.compile(r"(\w*(?:[Ff]unctor|KernelImpl|kernel_cuda|FlashAttn|cutlass_\d)\w*)")


def plain(name: str) -> str:
    """Return an operator's name without namespace; of `GeluBackward0`, `gelu`."""
    bare = name.partition("#")[0].removeprefix(_EVALUATED).removeprefix("torch::autograd::")
    found = re.fullmatch(r"(\w+)Backward\d*", bare)
    if found:
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", found[1]).lower()
    return bare.removeprefix("aten::").removesuffix("_backward")


def short_kernel(name: str) -> str:
    """Return a kernel's name without namespaces and arguments, with what its template is about."""
    bare = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    base = re.split(r"[<(]", bare, maxsplit=1)[0].rpartition("::")[2].strip() or bare
    found = _DETAIL.search(bare[len(base) :]) if "<" in bare else None
    return clipped(f"{base} {found[1]}" if found and found[1] != base else base, _LONGEST_NAME)
