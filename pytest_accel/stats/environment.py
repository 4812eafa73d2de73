"""Environments of runs: identity that must match, context whose changes may explain a loss."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from pytest_accel.stats.quantities import clipped, printable

# Titles of well-known fields, most likely causes first: an upgrade of the driver or of a library
# explains a slower step more often than anything below it. Fields not listed follow alphabetically, under their names.
TITLES: Mapping[str, str] = {
    "device_name": "device",
    "device_count": "devices",
    "device_memory_gb": "device memory (GB)",
    "mig_profile": "MIG profile",
    "power_limit_w": "power limit (W)",
    "cpu_model": "CPU",
    "architecture": "architecture",
    "threads": "threads",
    "cpu_quota": "CPU quota (CPUs)",
    "driver": "driver",
    "cuda": "CUDA",
    "cuda_driver": "CUDA of the driver",
    "hip": "HIP",
    "cudnn": "cuDNN",
    "cublas": "cuBLAS",
    "cublaslt": "cuBLASLt",
    "nccl": "NCCL",
    "torch": "torch",
    "triton": "triton",
    "transformer_engine": "TransformerEngine",
    "flash_attn": "flash-attn",
    "torchao": "torchao",
    "vllm": "vLLM",
    "matmul_precision": "matmul precision",
    "cudnn_enabled": "cuDNN enabled",
    "mkldnn_enabled": "oneDNN enabled",
    "cudnn_benchmark": "cuDNN benchmark",
    "cudnn_tf32": "TF32 in convolutions",
    "sdpa_disabled": "attention backends disabled",
    "deterministic": "deterministic algorithms",
    "max_autotune": "max-autotune",
    "attention": "attention",  # the kernel that torch chose for it
    "torchvision": "torchvision",
    "timm": "timm",
    "transformers": "transformers",
    "container_image": "container image",
    "python": "Python",
}
_RANK = {name: rank for rank, name in enumerate(TITLES)}
VARIABLE_PREFIX = "env."  # context fields that are environment variables
_SHOWN_CHARACTERS = 60  # of a value in a one-line description


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Variables that decide speed: of torch and its compiler, of NVIDIA's and AMD's libraries, of threads, networks and allocators.
VARIABLE_PREFIXES = ("NCCL_", "TORCH_", "PYTORCH_", "CUDA_", "OMP_", "MKL_", "KMP_")
PREFIXES_SINCE_2 = _names("""
    TORCHDYNAMO_ TORCHINDUCTOR_ TRITON_ CUBLAS CUDNN NVTE_ VLLM_ MIOPEN_ HSA_ HIP_ ROCR_ ROCBLAS_ HIPBLASLT_ OPENBLAS_ BLIS_
    GOMP_ DNNL_ ONEDNN_ NUMEXPR_ GLOO_ UCX_ FI_ MALLOC_ TCMALLOC_
""")
VARIABLES_SINCE_2 = _names("""
    NVIDIA_TF32_OVERRIDE LD_PRELOAD LD_BIND_NOW GLIBC_TUNABLES ATEN_CPU_CAPABILITY XLA_FLAGS GPU_MAX_HW_QUEUES
    AMD_SERIALIZE_KERNEL AMD_SERIALIZE_COPY PYTHON_GIL PYTHON_JIT PYTHONDEVMODE PYTHONMALLOC PYTHONOPTIMIZE
    PYTHONTRACEMALLOC PYTHONASYNCIODEBUG PYTHONPERFSUPPORT
""")
# Of those, names of places say nothing of speed, and differ from job to job.
_OF_PLACES = re.compile(r"(?:^|_)(?:DIR|DIRECTORY|ROOT|HOME|FILE|PATH|URL|HOST|PORT|IP|CACHE)(?:_|$)")
_OF_TORCH = _names(
    "matmul_precision cudnn_enabled mkldnn_enabled cudnn_benchmark cudnn_tf32 sdpa_disabled deterministic max_autotune"
)
# What an environment records: a fact that an earlier set had not is no change against it.
FACTS, FACT_SET = "facts", "2"
_SINCE_2 = _OF_TORCH + _names("""
    cublas cublaslt transformer_engine flash_attn torchao vllm microcode vbios inforom gsp_firmware nic_firmware ofed
""")
# Facts that somebody sets, beside variables; others are versions and the machine.
_SETTINGS = _OF_TORCH + _names("""
    attention application_sm_clock_mhz application_memory_clock_mhz ecc mig_mode persistence cpu_governor transparent_hugepages
""")
# A scheduler gives others to each job.
_PLACES = _names("cpu_affinity binding")
# scikit-learn sets them when it is imported, for all that runs afterwards: they tell which benchmarks came before.
_SET_ON_IMPORT = {"KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"}
REDACTED = "<redacted>"
_KEPT_CHARACTERS = 400  # of a variable's value: a baseline is read by people

# Redacting too much costs a suspect in a report; too little costs a credential in a public
# repository. So names match anywhere in the word, and values by shape.
_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|PASSCODE|PWD|KEY|CREDENTIAL|CREDS|AUTH|PRIVATE|COOKIE|SIGNATURE|BEARER",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"""
      ://[^\s]*@                                                   # user:password@ or token@ in a URL
    | -----BEGIN                                                   # PEM
    | \b(?:bearer|basic)\s+\S{6,}                                  # an Authorization header
    | (?:password|passwd|pwd|passphrase|secret|token|key|credential|signature|\bsig)s?["']?\s*[=:]
    | (?<![A-Za-z0-9])(?:
          gh[pousr]_ | github_pat_ | glpat- | glrt- | hf_ | sk- | sk_ | pk_ | rk_ | xox[abeoprs]- | npm_
        | pypi- | dckr_pat_ | nvapi- | gsk_ | ya29\. | SG\. | AIza | eyJ
      )[A-Za-z0-9_\-]{6,}
    | (?<![A-Za-z0-9])(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{8,}
    """,
    re.VERBOSE | re.IGNORECASE,
)
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
# They name a device, an image, and open nothing.
_DEVICE_UUID = re.compile(rf"\b(?:MIG-)?(?:GPU|MIG)-{_UUID}\b", re.IGNORECASE)
_IMAGE_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}\b")
_BARE_UUID = re.compile(_UUID, re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z0-9]{20,}")
_BASE64 = re.compile(r"[A-Za-z0-9+/_=\-]{20,}")
# Neighbours that differ in kind (capital, small, digit): 62 % in random base64, 40 % or more in random
# hex or base36, about 20 % in paths with capitals and digits. At 30 %, 1 in 250 random base64 words
# of 20 characters passes, 1 in 20,000 of 40 (simulated, 20,000 words each).
_RANDOM_SHARE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Facts as text. A fact that could not be read is absent, never empty or guessed."""

    identity: Mapping[str, str]  # must be equal for two runs to be compared
    context: Mapping[str, str]  # may differ; printed as suspects when something got slower

    @property
    def key(self) -> str:
        """Short and stable: the same facts give the same key in any process, on any machine."""
        return fingerprint({"identity": dict(self.identity), "context": dict(self.context)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One field that differs; None on the side where it is absent."""

    name: str
    old: str | None
    new: str | None

    @property
    def title(self) -> str:
        return title_of(self.name)

    @property
    def brief(self) -> str:
        """With versions cut after the part that differs: `torch 2.11 -> 2.12`."""
        if not (self.old and self.new and self.old[0].isdigit() and self.new[0].isdigit()):
            return str(self)
        old, new = self.old.split("."), self.new.split(".")
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
        parts = max(same + 1, 2)
        return str(replace(self, old=".".join(old[:parts]), new=".".join(new[:parts])))

    def __str__(self) -> str:
        absent = (
            "unset" if self.name.startswith(VARIABLE_PREFIX) else "default" if self.name in _OF_TORCH else ""
        )
        if self.old is None and not absent:
            return f"{self.title} {_shown(self.new or '')} appeared"
        if self.new is None and not absent:
            return f"{self.title} {_shown(self.old or '')} gone"
        return f"{self.title} {_shown(self.old or absent)} -> {_shown(self.new or absent)}"


def fingerprint(value: object) -> str:
    """Return the first 12 hex digits of the SHA-256 of canonical JSON: 48 bits for tens of environments."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()[:12]


def diff(old: Environment, new: Environment) -> tuple[Change, ...]:
    """Return the changes of the context, most likely causes first."""
    return _changes(old.context, new.context)


def diff_identity(old: Environment, new: Environment) -> tuple[Change, ...]:
    """Return the changes of the identity; with any, two environments must not be compared."""
    return _changes(old.identity, new.identity)


def describe(changes: Iterable[Change]) -> str:
    """Return one line: `cuDNN 9.10 -> 9.19, NCCL 2.27 -> 2.28`; empty when nothing changed."""
    return ", ".join(str(change) for change in sorted(changes, key=lambda each: by_likelihood(each.name)))


def describe_briefly(changes: Sequence[Change], most: int = 2) -> str:
    """Return the first changes, which are the most likely causes, cut after what differs: `torch 2.11 -> 2.12 and 3 more`."""
    shown = ", ".join(change.brief for change in changes[:most])
    return f"{shown} and {len(changes) - most} more" if len(changes) > most else shown


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[Change, ...]:
    return tuple(
        Change(name=name, old=old.get(name), new=new.get(name))
        for name in sorted(old.keys() | new.keys(), key=by_likelihood)
        if old.get(name) != new.get(name)
        and name.removeprefix(VARIABLE_PREFIX) not in {*_SET_ON_IMPORT, FACTS}
        and (old.get(FACTS) == new.get(FACTS) or _is_comparable(name, old, new))
    )


def _is_comparable(name: str, old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    """Return whether both sets of facts record it alike: the older one had fewer, and home folders in full."""
    variable = name.removeprefix(VARIABLE_PREFIX)
    is_variable = variable != name
    if name in old and name in new:
        return not is_variable or "~" not in new[name]
    return variable.startswith(VARIABLE_PREFIXES) if is_variable else name not in _SINCE_2


def is_setting(name: str) -> bool:
    """Return whether a fact is a variable or a setting of torch or the machine, and no version."""
    if name.startswith(VARIABLE_PREFIX):
        return not (name.endswith("_VERSION") or is_place(name))  # a version is that of a container
    return name in _SETTINGS


def is_place(name: str) -> bool:
    """Return whether a fact says which CPUs, devices or folders a job was given."""
    variable = name.removeprefix(VARIABLE_PREFIX)
    if variable == name:
        return name in _PLACES
    return name.endswith("_VISIBLE_DEVICES") or _OF_PLACES.search(variable) is not None


def title_of(name: str) -> str:
    return TITLES.get(name, name.removeprefix(VARIABLE_PREFIX))


def by_likelihood(name: str) -> tuple[int, str]:
    return _RANK.get(name, len(_RANK)), name


def _shown(value: str) -> str:
    """Return a value shortened and without control characters: it comes from a file."""
    return clipped(printable(value), _SHOWN_CHARACTERS)


def safe_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that decide speed, and no other; what may be a credential is redacted, a home folder shortened."""
    home = environ.get("HOME", "").rstrip("/")
    return {
        name: _safe_value(name, environ[name].replace(home, "~") if home else environ[name])
        for name in sorted(environ)
        if decides_speed(name)
    }


def decides_speed(variable: str) -> bool:
    if variable.startswith(VARIABLE_PREFIXES):
        return variable not in _SET_ON_IMPORT
    return variable in VARIABLES_SINCE_2 or (
        variable.startswith(PREFIXES_SINCE_2) and not _OF_PLACES.search(variable)
    )


def safe_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a command line with secrets redacted: values of options named like one, and what looks like a credential."""
    return tuple(_safe_word(before, word) for before, word in pairwise(["", *arguments]))


def _safe_word(before: str, word: str) -> str:
    name, given, value = word.partition("=")
    if not word.startswith("-"):
        of_secret = before.startswith("-") and "=" not in before and _SECRET_NAME.search(before)
        return REDACTED if of_secret or looks_secret(word) else word
    if given and (_SECRET_NAME.search(name) or looks_secret(value)):
        return f"{name}={REDACTED}"
    return REDACTED if looks_secret(word) else word


def looks_secret(value: str) -> bool:
    """Return whether a value has the shape of a credential."""
    rest = _IMAGE_DIGEST.sub("", _DEVICE_UUID.sub("", value))
    return bool(_SECRET_VALUE.search(rest) or _BARE_UUID.search(rest)) or _looks_random(rest)


def _safe_value(name: str, value: str) -> str:
    if _SECRET_NAME.search(name) or looks_secret(value):
        return REDACTED
    # The operating system passes bytes; what is no UTF-8 arrives as lone surrogates.
    return clipped(value.encode("utf-8", "backslashreplace").decode("utf-8"), _KEPT_CHARACTERS)


def _looks_random(value: str) -> bool:
    """Return a long word of letters and digits mixed, or base64 with its punctuation."""
    words = _WORD.findall(value)
    if any(re.search("[0-9]", word) and re.search("[A-Za-z]", word) for word in words):
        return True
    return any(_share_of_changes(word) > _RANDOM_SHARE for word in _BASE64.findall(value))


def _share_of_changes(word: str) -> float:
    kinds = [(c.isupper(), c.islower()) if c.isalnum() else None for c in word]
    pairs = [(left, right) for left, right in pairwise(kinds) if left is not None and right is not None]
    return sum(left != right for left, right in pairs) / len(pairs) if pairs else 0.0
