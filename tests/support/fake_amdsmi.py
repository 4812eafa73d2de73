"""A module with amdsmi's Python interface that replays answers; no AMD GPU is needed."""

import types


class SmiError(Exception):
    """As AmdSmiLibraryException: no relative of OSError."""


class Smi(types.ModuleType):
    """GPUs as dicts; `serial` and what the questions answer, or an exception to raise."""

    def __init__(self, *gpus):
        super().__init__("amdsmi")
        self.gpus = gpus
        self.open = 0

    def amdsmi_init(self):
        self.open += 1

    def amdsmi_shut_down(self):
        self.open -= 1

    def amdsmi_get_processor_handles(self):
        return [{"of": gpu} for gpu in self.gpus]

    def amdsmi_get_gpu_asic_info(self, handle):
        units = handle["of"].get("units", 304)
        return {
            "market_name": "AMD Instinct",
            "asic_serial": handle["of"]["serial"],
            "num_compute_units": units,
        }

    def amdsmi_get_energy_count(self, handle):
        return self._told(handle["of"]["energy"])

    def amdsmi_get_power_info(self, handle):
        return self._told(handle["of"]["power"])

    def amdsmi_get_gpu_metrics_info(self, handle):
        return self._replayed(handle, "metrics")

    def amdsmi_get_power_cap_info(self, handle):
        return self._replayed(handle, "caps")

    def amdsmi_get_gpu_total_ecc_count(self, handle):
        return self._replayed(handle, "ecc")

    def amdsmi_get_gpu_process_list(self, handle):
        return self._replayed(handle, "processes")

    def _replayed(self, handle, what):
        """Return the next recorded answer, the last one again and again; no answer raises as an old driver does."""
        answers = handle["of"].get(what) or [SmiError("AMDSMI_STATUS_NOT_SUPPORTED")]
        return self._told(answers.pop(0) if len(answers) > 1 else answers[0])

    @staticmethod
    def _told(answer):
        if isinstance(answer, Exception):
            raise answer
        return answer
