"""Every metric that a run may hold of ours: its name, which carries the unit, what it says, and which way is better."""

from __future__ import annotations

from collections.abc import Mapping

# As runs store them: in baselines, in results, in the history. What a benchmark adds itself (`metrics=`) stands beside.
OF_ANY_STEP: Mapping[str, str] = {
    "host_cpu_s_per_step": "CPU time that the process spent on a step, in seconds.",
    "launch_s": "The time until the host is done with a step, the device idle before, in seconds; on accelerators. Short of the step where the device is what takes long; as long where the host is, or waits in the step itself: for a batch, for a result (`.item()`), or for room among a thousand launches.",
    "tflops": "Arithmetic of the model a second, in TFLOP/s; where the operations of a step are known.",
    "mfu": "Its share of the device's dense peak at the precision; where the catalogue has that peak.",
    "memory_gb_per_s": "What a step cannot avoid moving through the device's memory, in GB a second: what caches may keep, and what lies between layers, is not in it.",
    "roofline_share": "The least time that arithmetic and memory allow, as a share of the step's: 1 where nothing is left to gain; where its bytes and the device's bandwidth are known.",
    "energy_per_step_j": "What the device's own counter says of a step, in joules; of all devices of a gang.",
    "energy_sampled_per_step_j": "The same from power that was sampled beside the rounds: a check of the counter.",
    "energy_j": "What the devices used over the whole measured window, in joules.",
    "power_mean_w": "Mean power of a device over the window, in watts.",
    "power_peak_w": "The highest power that was sampled, in watts.",
    "tdp_share": "Mean power over the device's TDP; where the catalogue has that.",
    "node_cpu_energy_per_step_j": "What the CPUs of the nodes used for a step, in joules; where they have counters.",
    "node_module_energy_per_step_j": "What whole modules (CPU, GPU and memory) used for a step, in joules; it contains the devices' energy.",
    "sm_clock_mhz": "Mean clock of the multiprocessors over the window, in MHz.",
    "memory_clock_mhz": "Mean clock of the device's memory over the window, in MHz.",
    "temperature_c": "The highest temperature of the device in the window, in degrees Celsius.",
    "power_capped_share": "The share of the window in which the power limit held the clocks down.",
    "throttled_share": "The share of the window in which heat or the hardware itself held the clocks down.",
    "slowdown_felt": "How much of --accel-slowdown was felt; its presence says that a run was slowed on purpose.",
    "scaling_efficiency": "Throughput per device against the baseline of the same benchmark on fewer devices: 1 where nothing was lost.",
}
# Of what `train`, `infer` and `converge` build; a step of the user's own may measure the like, under the same name.
OF_BUILT_STEPS: Mapping[str, str] = {
    "loader_step_s": "The time in which the loader alone makes a batch, in seconds.",
    "compute_step_s": "The time of a step whose batch lies ready, in seconds.",
    "loader_efficiency": "What is left of the device's own rate when batches have to be loaded: 1 where the loader hides behind the step. Gated.",
    "latency_p50_s": "The time that half of the single steps stay below, each waited for, in seconds (`infer(..., latency=True)`).",
    "latency_p90_s": "The same for nine of ten.",
    "latency_p99_s": "The same for 99 of 100.",
    "epoch_size": "Units of work that count as one epoch (`epoch_size=`).",
    "epoch_s": "The time of an epoch, in seconds: of `epoch_size`, or (`converge`) the typical one after the first.",
    "first_epoch_s": "The time of the first epoch, which compiles, in seconds (`converge`).",
    "accuracy": "The share of the test set that the model has right after the last epoch (`converge`). Gated.",
    "time_to_target_s": "The time of training until the accuracy that was asked for, in seconds (`converge`).",
}
MEASURED: Mapping[str, str] = {**OF_ANY_STEP, **OF_BUILT_STEPS}

# How it was measured, and under what conditions: neither more nor less of these is better, and no gate takes them.
DESCRIPTIVE = frozenset(
    {
        "slowdown_felt",
        "epoch_size",
        "energy_j",  # grows with the window
        "energy_sampled_per_step_j",  # a check of the counter, whose figure is gated
        "power_mean_w",  # a faster step may need more of it: energy is what it costs
        "power_peak_w",
        "tdp_share",
        "sm_clock_mhz",
        "memory_clock_mhz",
        "temperature_c",
        "power_capped_share",
        "throttled_share",
    }
)
_COSTS = ("_s", "_j")  # the units in a name: seconds and joules
# What they buy: said in full, or as everybody writes it (`bandwidth_gb_s`).
_SIZES = ("b", "kb", "mb", "gb", "tb", "kib", "mib", "gib", "tib", "bytes", "bits")
_COUNTS = (
    "flop",
    "flops",
    "tflop",
    "tflops",
    "ops",
    "images",
    "tokens",
    "samples",
    "sequences",
    "requests",
    "frames",
)
_BOUGHT = ("per", *_SIZES, *_COUNTS, "items", "steps", "words", "units")
_RATES = tuple(f"_{word}{cost}" for word in _BOUGHT for cost in _COSTS)


def is_rate(name: str) -> bool:
    """Whether a name says what a second or a joule buys: `tokens_per_s`, `bandwidth_gb_s`."""
    return f"_{name}".endswith(_RATES)


def is_cost(name: str) -> bool:
    """Whether a name ends in seconds or joules that are spent: `decode_s`, and not `tokens_per_s`."""
    return name.endswith(_COSTS) and not is_rate(name)


LESS_IS_BETTER = frozenset({"host_cpu_s_per_step", *filter(is_cost, MEASURED)}) - DESCRIPTIVE

# By what name people ask for a metric, and read it: work per step belongs to the configuration, so that energy per
# step and energy per unit of work rise together, and both are "energy".
SHORT_NAMES: Mapping[str, str] = {"energy": "energy_per_step_j", "latency": "latency_p99_s"}
# No metric, whose names are identifiers: throughput once more, against the anchor.
ANCHOR = "since-anchor"
_SHOWN: Mapping[str, str] = {
    **{metric: short for short, metric in SHORT_NAMES.items()},
    ANCHOR: "since the anchor",
}


def less_is_better(name: str) -> bool:
    """Which way is better; a name of a user's own tells by its unit: `decode_s` is a cost, `tokens_per_s` is not."""
    if name in MEASURED:
        return name in LESS_IS_BETTER
    return is_cost(name)


def shown_name(metric: str) -> str:
    """As verdicts name it."""
    return _SHOWN.get(metric, metric)
