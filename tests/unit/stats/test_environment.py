"""Environments: stable keys, telling differences, and no secret in what is stored."""

import base64
import json
import os
import random
import string
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.environment import (
    FACT_SET,
    FACTS,
    REDACTED,
    VARIABLE_PREFIXES,
    Environment,
    describe,
    describe_briefly,
    diff,
    diff_identity,
    looks_secret,
    safe_arguments,
    safe_variables,
)


def environment(context=None, **identity):
    return Environment(identity=identity, context=context or {})


class TestKey:
    def test_key_is_short_hex_and_the_same_in_another_process(self):
        code = (
            "from pytest_accel.stats.environment import Environment as E;"
            "print(E(identity={'device_name': 'NVIDIA H200'}, context={'torch': '2.10.0', 'é': '°'}).key)"
        )
        keys = {
            subprocess.run(
                [sys.executable, "-c", code],
                env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
            for seed in ("1", "2")
        }
        here = environment({"é": "°", "torch": "2.10.0"}, device_name="NVIDIA H200").key
        assert keys == {here}
        assert len(here) == 12
        assert set(here) <= set(string.hexdigits.lower())


class TestDiff:
    def test_upgrade_reads_as_in_a_report(self):
        old = environment({"cudnn": "9.10", "nccl": "2.27", "torch": "2.9"})
        new = environment({"cudnn": "9.19", "nccl": "2.28", "torch": "2.9"})
        assert describe(diff(old, new)) == "cuDNN 9.10 -> 9.19, NCCL 2.27 -> 2.28"

    def test_the_most_telling_comes_first_and_the_rest_alphabetically(self):
        names = [
            "zzz",
            "env.NCCL_ALGO",
            "kernel",
            "triton",
            "torch",
            "nccl",
            "cudnn",
            "cuda",
            "driver",
            "aaa",
        ]
        changes = diff(environment(), environment(dict.fromkeys(names, "1")))
        order = "driver cuda cudnn nccl torch triton aaa env.NCCL_ALGO kernel zzz"
        assert [change.name for change in changes] == order.split()

    def test_short_text_cuts_versions_after_what_differs(self):
        old = environment({"torch": "2.11.0", "cudnn": "9.10.2.21", "kernel": "a.b.c"})
        new = environment({"torch": "2.12.0", "cudnn": "9.10.3.1", "kernel": "a.b.d", "triton": "3.1"})
        assert describe_briefly(diff(old, new)) == "cuDNN 9.10.2 -> 9.10.3, torch 2.11 -> 2.12 and 2 more"
        assert describe_briefly(diff(old, new), 4).endswith("triton 3.1 appeared, kernel a.b.c -> a.b.d")

    def test_appeared_and_gone(self):
        old = environment({"timm": "1.0.30"})
        new = environment({"env.NCCL_ALGO": "Ring"})
        assert describe(diff(old, new)) == "timm 1.0.30 gone, NCCL_ALGO unset -> Ring"

    def test_identity_is_compared_apart(self):
        old, new = environment(power_limit_w="700"), environment(power_limit_w="500")
        assert diff(old, new) == ()
        assert describe(diff_identity(old, new)) == "power limit (W) 700 -> 500"

    def test_long_and_unprintable_values_stay_on_one_line(self):
        old, new = environment({"kernel": "a\n\x1b[31m"}), environment({"kernel": "b" * 500})
        text = describe(diff(old, new))
        assert text.startswith(r"kernel a\n\x1b[31m -> bbb")
        assert len(text) < 100
        assert text.isprintable()


names = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=12)
allowed_names = st.builds(str.__add__, st.sampled_from(VARIABLE_PREFIXES), names)
base62 = string.ascii_letters + string.digits


def tokens(prefix: str, size: int = 24) -> st.SearchStrategy[str]:
    return st.text(base62, min_size=size, max_size=size).map(lambda rest: prefix + rest)


def both_letters_and_digits(word: str) -> bool:
    return any(c.isdigit() for c in word) and any(c.isalpha() for c in word)


planted_secrets = st.one_of(
    *(
        tokens(prefix)
        for prefix in ("ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "hf_", "sk-", "sk-proj-", "xoxb-")
    ),
    *(tokens(prefix) for prefix in ("npm_", "pypi-", "dckr_pat_", "nvapi-", "eyJhbGciOi", "AIza")),
    st.text(string.ascii_uppercase + string.digits, min_size=16, max_size=16).map("AKIA".__add__),
    st.text(base62, min_size=1, max_size=20).map(lambda word: f"https://user:{word}@example.org/x"),
    st.text(base62, min_size=1, max_size=20).map(lambda word: f"https://{word}@example.org/x"),
    st.text(base62, min_size=8).map(lambda word: f"-----BEGIN PRIVATE KEY-----\n{word}"),
    st.text(base62, min_size=6).map(lambda word: f"Authorization: Bearer {word}"),
    st.text(base62, min_size=1).map(lambda word: f"--password={word}"),
    st.binary(min_size=16, max_size=40).map(bytes.hex).filter(both_letters_and_digits),
    st.text(base62, min_size=20, max_size=64).filter(both_letters_and_digits),
)


class TestSafeVariables:
    @given(
        name=allowed_names,
        before=st.sampled_from(["", "x,", "a=", "/opt/", " "]),
        secret=planted_secrets,
        after=st.sampled_from(["", ",y", " z", ";"]),
    )
    def test_planted_secrets_never_survive(self, name, before, secret, after):
        assert safe_variables({name: before + secret + after}) == {name: REDACTED}

    @given(
        prefix=st.sampled_from(VARIABLE_PREFIXES),
        word=st.sampled_from(["TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIALS", "AUTH", "Passwd"]),
        rest=names,
        value=st.text(),
    )
    def test_a_name_that_speaks_of_secrets_never_keeps_its_value(self, prefix, word, rest, value):
        assert safe_variables({f"{prefix}{word}{rest}": value}) == {f"{prefix}{word}{rest}": REDACTED}

    def test_the_digest_of_an_image_is_no_secret(self):
        digest = "sha256:" + "0a1b2c3d4e5f6789" * 4
        assert not looks_secret(f"registry.example/bench/torch:25.01@{digest}")
        assert looks_secret(digest.removeprefix("sha256:"))  # 64 random digits by themselves may be one

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("CUDA_VISIBLE_DEVICES", "0,1,2,3"),
            ("CUDA_VISIBLE_DEVICES", "GPU-8f3aab12-1234-9abc-1234-1234567890ab"),
            ("CUDA_VISIBLE_DEVICES", "MIG-8f3aab12-1234-9abc-1234-1234567890ab,MIG-1"),
            ("CUDA_VISIBLE_DEVICES", "MIG-GPU-8f3aab12-1234-9abc-1234-1234567890ab/1/0"),
            ("CUDA_HOME", "/usr/local/cuda-12.4"),
            ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:512"),
            ("PYTORCH_VERSION", "2.6.0a0+df5bbc09d1.nv24.12"),
            ("TORCH_CUDA_ARCH_LIST", "8.0 8.6 9.0+PTX"),
            ("TORCH_EXTENSIONS_DIR", "/p/home/jusers/smith1/juwels/.cache/torch_extensions/py311_cu124"),
            ("NCCL_SOCKET_IFNAME", "^docker0,lo"),
            ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1,mlx5_2:1"),
            ("NCCL_ALGO", "NVLS,Ring,Tree"),
            ("OMP_PLACES", "{0:4}:4:4"),
            ("KMP_AFFINITY", "granularity=fine,compact,1,0"),
            ("MKL_NUM_THREADS", "1"),
        ],
    )
    def test_ordinary_settings_are_kept_as_they_are(self, name, value):
        assert safe_variables({name: value}) == {name: value}

    @pytest.mark.parametrize(
        ("names", "is_kept"),
        [
            (
                "NCCL_ALGO TORCHDYNAMO_DISABLE NVIDIA_TF32_OVERRIDE CUBLASLT_LOG_LEVEL LD_PRELOAD PYTHON_GIL",
                True,
            ),
            ("TRITON_CACHE_DIR VLLM_HOST_IP NVIDIA_VISIBLE_DEVICES PYTHONPATH HOME LD_LIBRARY_PATH", False),
        ],
    )
    def test_only_variables_that_decide_speed_are_kept(self, names, is_kept):
        for name in names.split():
            assert (name in safe_variables({name: "1"})) is is_kept, name

    def test_a_home_folder_is_shortened(self):
        environ = {"HOME": "/home/ada", "LD_PRELOAD": "/home/ada/lib/jemalloc.so", "CUDA_HOME": "/opt/cuda"}
        assert safe_variables(environ) == {"LD_PRELOAD": "~/lib/jemalloc.so", "CUDA_HOME": "/opt/cuda"}

    def test_the_committed_baselines_see_no_change_in_facts_that_they_had_not(self):
        stored = json.loads(Path("baselines/h200/cnn.json").read_text(encoding="utf-8"))["environments"]
        older = [each for each in stored.values() if FACTS not in each["context"]]
        assert older
        for each in older:
            old = Environment(identity=each["identity"], context=each["context"])
            more = {
                FACTS: FACT_SET,
                "vbios": "96",
                "microcode": "0x1",
                "cublas": "13.1.0",
                "env.LD_PRELOAD": "~/a.so",
            }
            new = Environment(identity=old.identity, context={**old.context, **more})
            assert diff(old, new) == diff_identity(old, new) == ()

    def test_what_an_older_set_of_facts_had_not_is_no_change(self):
        old = environment({"env.CUDA_HOME": "/home/ada/cuda", "torch": "2.11"})
        new = environment(
            {
                FACTS: FACT_SET,
                "env.TORCHDYNAMO_DISABLE": "1",
                "vbios": "96",
                "env.CUDA_HOME": "~/cuda",
                "torch": "2.11",
                "env.OMP_PROC_BIND": "true",
            }
        )
        assert describe(diff(old, new)) == "OMP_PROC_BIND unset -> true"
        assert describe(diff(environment({FACTS: FACT_SET, "torch": "2.11"}), environment(new.context))) == (
            "CUDA_HOME unset -> ~/cuda, OMP_PROC_BIND unset -> true, TORCHDYNAMO_DISABLE unset -> 1, vbios 96 appeared"
        )

    @pytest.mark.parametrize("name", ["KMP_INIT_AT_FORK", "KMP_DUPLICATE_LIB_OK"])
    def test_what_a_library_sets_when_it_is_imported_is_neither_kept_nor_a_suspect(self, name):
        """Of one session, rows before and after that import had two environments."""
        assert safe_variables({name: "FALSE", "KMP_BLOCKTIME": "0"}) == {"KMP_BLOCKTIME": "0"}
        stored = environment({f"env.{name}": "FALSE", "torch": "2.11"})
        assert describe(diff(stored, environment({"torch": "2.12"}))) == "torch 2.11 -> 2.12"

    def test_undecodable_and_endless_values_can_be_stored(self):
        kept = safe_variables({"NCCL_A": "\udcff", "NCCL_B": "ab " * 1000})
        assert kept["NCCL_A"] == "\\udcff"
        assert len(kept["NCCL_B"]) < 500


@pytest.mark.parametrize(
    ("line", "safe"),
    [
        ("-m gh200 --my-token abc suite", f"-m gh200 --my-token {REDACTED} suite"),
        ("--my-token=abc suite", f"--my-token={REDACTED} suite"),
        ("--my-token -x suite", "--my-token -x suite"),  # it had no value
    ],
)
def test_secrets_of_a_command_line_are_redacted(line, safe):
    assert safe_arguments(line.split()) == tuple(safe.split())


def test_random_base64_with_punctuation_is_caught():
    # A seeded generator, not hypothesis, which would search for "AAAA...": that is no secret.
    source = random.Random(20260131)
    words = [base64.b64encode(source.randbytes(30)).decode() for _ in range(2000)]
    passed = [word for word in words if not looks_secret(word)]
    assert len(passed) <= 2  # about 1 in 20,000 is expected
    assert looks_secret("123e4567-e89b-12d3-a456-426614174000")
    assert not looks_secret("GPU-123e4567-e89b-12d3-a456-426614174000")
