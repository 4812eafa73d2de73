"""Every metric that a run may hold of ours: its name, which carries the unit, and what it says."""

from __future__ import annotations

from collections.abc import Mapping

# As runs store them: in baselines, in results, in the history. What a benchmark adds itself (`metrics=`) stands beside.
OF_ANY_STEP: Mapping[str, str] = {
    "host_cpu_s_per_step": "CPU time that the process spent on a step, in seconds.",
    "tflops": "Arithmetic of the model a second, in TFLOP/s; where the operations of a step are known.",
    "mfu": "Its share of the device's dense peak at the precision; where the catalogue has that peak.",
    "energy_per_step_j": "What the device's own counter says of a step, in joules; of all devices of a gang.",
    "slowdown_felt": "How much of --accel-slowdown was felt; its presence says that a run was slowed on purpose.",
    "scaling_efficiency": "Throughput per device against the baseline of the same benchmark on fewer devices: 1 where nothing was lost.",
}
# Of what `train`, `infer` and `converge` build; a step of the user's own may measure the like, under the same name.
OF_BUILT_STEPS: Mapping[str, str] = {
    "loader_step_s": "The time in which the loader alone makes a batch, in seconds.",
    "compute_step_s": "The time of a step whose batch lies ready, in seconds.",
    "fed_share": "What is left of the device's own rate when batches have to be loaded: 1 where the loader hides behind the step. Gated.",
    "latency_p50_s": "The time that half of the single steps stay below, each waited for, in seconds (`infer(..., latency=True)`).",
    "latency_p90_s": "The same for nine of ten.",
    "latency_p99_s": "The same for 99 of 100.",
    "epoch_size": "Units of work that count as one epoch (`epoch_size=`).",
    "epoch_s": "The time of an epoch, in seconds: of `epoch_size`, or (`converge`) the typical one after the first.",
    "first_epoch_s": "The time of the first epoch, which compiles, in seconds (`converge`).",
    "accuracy": "The share of the test set that the model has right after the last epoch (`converge`). Gated.",
    "time_to_target_s": "The time of training until the accuracy that was asked for, in seconds (`converge`).",
}
# A gate takes more for better: of these it would fail what got better.
LESS_IS_BETTER = frozenset(
    {"host_cpu_s_per_step", "energy_per_step_j", "slowdown_felt"}
    | {name for name in OF_BUILT_STEPS if name.endswith("_s")}
)
MEASURED: Mapping[str, str] = {**OF_ANY_STEP, **OF_BUILT_STEPS}
