"""Traces as kernel tables: a real profile on the CPU, and replayed traces of a GPU."""

import math
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.measure import profile
from pytest_accel.measure.device import CpuDevice, IpuDevice
from pytest_accel.measure.profile import WINDOW, Span, exposed_us, profile_step, short_kernel, table_of
from pytest_accel.measure.rounds import ALONE, timed_block

CPU = CpuDevice(threads=1)


def event(cat, name, ts, dur, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


def replay(*events, steps=1, us=1000.0, host=False):
    """Return the table of a trace whose window is the whole of it."""
    window = event("user_annotation", WINDOW, 0.0, us)
    step_s = us * 1e-6 / steps
    return table_of([window, *events], host=host, steps=steps, step_s=step_s, profiled_s=step_s)


def kernel(name, ts, dur, op=None, **args):
    return event("kernel", name, ts, dur, tid=7, **({"External id": op} if op else {}), **args)


def operations(found):
    return {each.operation: each for each in found.rows}


# Replayed: names as torch 2.5 to 2.11 with cuDNN 8 and 9, cuBLAS 12, NCCL 2.18 to 2.27 and Triton 3 call their kernels.
FAMILIES = {
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64": "convolution",
    "sm80_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc": "convolution backward weights",
    "sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x64x64": "convolution backward data",
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816wgrad_optimized_bf16_128x128>(T1::Params)": "convolution backward weights",
    "_5x_cudnn_ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1": "convolution",
    "void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float, false>(x)": "convolution layout",
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT": "matrix product",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1": "matrix product",
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn": "matrix product",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(T1::Params)": "matrix product",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(x)": "matrix product",
    "Cijk_Ailk_Bljk_BBS_BH_MT256x256x32_MI32x32x8x1_SN": "matrix product",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(pytorch_flash::Flash_fwd_params)": "attention",
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64>>(x)": "attention backward",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6_128x128x64_4x1x1": "attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x128x64_4x1x1": "attention backward",
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<x>::Params)": "attention",
    "fmha_cutlassB_bf16_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<x>::Params)": "attention backward",
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::x>>>(x)": "attention",
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnBwdSm90<flash::x>>>(x)": "attention backward",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(x)": "batch norm",
    "void at::native::batch_norm_backward_reduce_channels_last_kernel<4>(x)": "batch norm backward",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)": "layer norm",
    "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel<float, float>(x)": "layer norm backward",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>(x)": "softmax",
    "void (anonymous namespace)::softmax_warp_backward<float, float, float, 8, false, false>(x)": "softmax backward",
    "void at::native::(anonymous namespace)::max_pool_forward_nhwc<float, int>(x)": "pooling",
    "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float, float, long>(x)": "embedding",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<x, at::native::FusedAdamMathFunctor<float, 4>>(x)": "optimizer",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>(x)": "elementwise",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::sum_functor<float>>>(x)": "reduction",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_reduce",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": "all_reduce",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_gather",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce_scatter",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": "send_recv",
    "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "broadcast",
    "triton_poi_fused_convolution_relu_12": "convolution_relu",
    "triton_red_fused_add_native_layer_norm_5": "add_native_layer_norm",
    "triton_tem_fused_mm_7": "matrix product",
    "spin_kernel(long)": "spin_kernel",
}


class TestNames:
    @pytest.mark.parametrize(("name", "operation"), FAMILIES.items())
    def test_kernel_of_a_graph_replay_is_placed_by_its_name(self, name, operation):
        assert set(operations(replay(kernel(name, 10, 5)))) == {operation}

    @pytest.mark.parametrize(
        ("name", "short"),
        {
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, x>(int)": "vectorized_elementwise_kernel CUDAFunctor_add",
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<M<4>, FusedAdamMathFunctor<float>>(M)": "multi_tensor_apply_kernel FusedAdamMathFunctor",
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x256>(P)": "Kernel2 cutlass_80_tensorop_bf16_s16816gemm_bf16_128x256",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
            "triton_poi_fused_gelu_3": "triton_poi_fused_gelu_3",
        }.items(),
    )
    def test_kernel_names_lose_what_says_nothing(self, name, short):
        assert short_kernel(name) == short

    def test_long_names_are_clipped(self):
        assert len(short_kernel("x" * 500)) == 70


class TestLaunchingOperator:
    def test_operator_places_a_kernel_whose_name_says_nothing(self):
        found = replay(
            event("cpu_op", "aten::linear", 0, 10, **{"External id": 1}),
            event("cpu_op", "aten::addmm", 1, 8, **{"External id": 2}),
            kernel("some_future_name_v2", 20, 5, 2),
        )
        assert operations(found)["matrix product"].kernel == "some_future_name_v2"

    def test_kernel_without_an_operator_is_not_that_of_an_annotation_without_an_id(self):
        found = replay(event("user_annotation", "Optimizer.step#AdamW.step", 0, 10), kernel("nvjet", 20, 5))
        assert set(operations(found)) == {"matrix product"}

    def test_convolution_backward_is_divided_by_what_it_computes(self):
        found = replay(
            event(
                "cpu_op",
                "autograd::engine::evaluate_function: ConvolutionBackward0",
                0,
                10,
                **{"External id": 1},
            ),
            event("cpu_op", "aten::convolution_backward", 1, 8, **{"External id": 2}),
            kernel("xmma_dgrad_a", 20, 5, 2),
            kernel("xmma_wgrad_a", 30, 5, 2),
        )
        assert set(operations(found)) == {"convolution backward data", "convolution backward weights"}

    def test_attention_of_several_operators_is_one_operation_in_both_directions(self):
        forward = {"Sequence number": 5, "Fwd thread id": 0}
        backward = {"Sequence number": 5, "Fwd thread id": 1}
        found = replay(
            event("cpu_op", "aten::scaled_dot_product_attention", 0, 10, **{"External id": 1}),
            event("cpu_op", "aten::bmm", 1, 5, **{"External id": 2}, **forward),
            event(
                "cpu_op",
                "autograd::engine::evaluate_function: BmmBackward0",
                12,
                8,
                tid=2,
                **{"External id": 3},
                **backward,
            ),
            event("cpu_op", "aten::bmm", 13, 3, tid=2, **{"External id": 4}),
            kernel("nvjet", 20, 5, 2),
            kernel("nvjet", 30, 7, 4),
        )
        assert {name: each.seconds for name, each in operations(found).items()} == pytest.approx(
            {"attention": 5e-6, "attention backward": 7e-6}
        )

    def test_layout_conversion_is_no_convolution(self):
        found = replay(
            event("cpu_op", "aten::conv2d", 0, 10, **{"External id": 1}),
            kernel("void cudnn::nchwToNhwcKernel<float>(x)", 20, 5, 1),
            kernel("sm90_xmma_fprop_implicit_gemm", 30, 50, 1),
        )
        assert {name: each.seconds for name, each in operations(found).items()} == {
            "convolution": pytest.approx(50e-6),
            "convolution layout": pytest.approx(5e-6),
        }

    def test_optimizer_and_compiled_regions_are_operations(self):
        found = replay(
            event("user_annotation", "Optimizer.step#AdamW.step", 0, 10, **{"External id": 1}),
            event("cpu_op", "aten::_fused_adamw_", 1, 5, **{"External id": 2}),
            event("cpu_op", "Torch-Compiled Region: 0/0", 11, 20, **{"External id": 3}),
            event("cpu_op", "CompiledFunction", 12, 18, **{"External id": 4}),
            event("cpu_op", "aten::mm", 13, 2, **{"External id": 5}),
            kernel("multi_tensor_apply_kernel", 20, 5, 2),
            kernel("triton_poi_fused_add_gelu_3", 30, 5, 4),
            kernel("nvjet", 40, 5, 5),
        )
        assert set(operations(found)) == {"optimizer", "add_gelu", "matrix product"}


class TestSharedTime:
    def test_collective_takes_the_time_in_which_nothing_computes(self):
        found = operations(
            replay(
                kernel("nvjet", 0, 10),
                kernel(
                    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)",
                    5,
                    20,
                    dtype="BFloat16",
                    **{"In msg nelems": 13_000_000},
                ),
            )
        )
        reduced = found["all_reduce up to 32 MiB"]
        assert reduced.seconds == pytest.approx(15e-6)
        assert reduced.overlapped_s == pytest.approx(5e-6)
        assert found["matrix product"].seconds == pytest.approx(10e-6)

    def test_collective_of_the_cpu_takes_the_time_in_which_the_main_thread_waits(self):
        found = operations(
            replay(
                event("cpu_op", "aten::mm", 0, 10),
                event("cpu_op", "c10d::allreduce_", 10, 20),
                event(
                    *("user_annotation", "gloo:all_reduce", 5, 25, 9),
                    **{"Input Dims": [[1000, 250]], "Input type": ["float"]},
                ),
                host=True,
            )
        )
        reduced = found["all_reduce up to 1 MiB"]
        assert (reduced.seconds, reduced.overlapped_s) == pytest.approx((20e-6, 5e-6))
        assert set(found) == {"matrix product", "all_reduce up to 1 MiB"}

    def test_waiting_for_a_batch_takes_the_time_in_which_nothing_computes(self):
        batch = event(
            "user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 100, 300
        )
        found = replay(batch, kernel("nvjet", 300, 200))
        assert operations(found)["data loader"].seconds == pytest.approx(200e-6)
        assert found.idle_s == pytest.approx(600e-6)

    def test_copies_are_named_by_their_direction(self):
        found = replay(
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 10, tid=7),
            event("gpu_memset", "Memset (Device)", 20, 5, tid=7),
        )
        assert set(operations(found)) == {"copy HtoD", "memset"}

    def test_figures_are_a_step_of_those_inside_the_window(self):
        found = replay(
            kernel("nvjet", -50, 20), kernel("nvjet", 0, 10), kernel("nvjet", 20, 10), steps=2, us=100.0
        )
        (row,) = found.rows
        assert (row.count, row.seconds) == (1, pytest.approx(10e-6))
        assert found.idle_s == pytest.approx(40e-6)

    @given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 50), st.booleans()), max_size=30))
    def test_shares_sum_to_the_time_in_which_anything_ran(self, found):
        spans = [Span(begin, begin + length, "x", "y", waits) for begin, length, waits in found]
        covered, reached = 0.0, -math.inf
        for span in sorted(spans):
            covered += max(0.0, span.end - max(span.begin, reached))
            reached = max(reached, span.end)
        assert math.isclose(math.fsum(exposed_us(spans)), covered, abs_tol=1e-6)

    def test_trace_without_the_window_or_without_work_has_no_table(self):
        assert table_of([], host=False, steps=1, step_s=1, profiled_s=1) is None
        assert replay() is None

    def test_waiting_for_a_batch_is_no_table_without_kernels(self):
        batch = event(
            "user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 100, 300
        )
        assert replay(batch) is None

    def test_operators_are_no_kernels_where_the_profiler_saw_none(self):
        assert replay(event("cpu_op", "aten::mm", 0, 10)) is None


class TestOnTheCpu:
    torch = pytest.importorskip("torch")

    def step(self, softmaxes=1, sleep_s=0.0):
        model = self.torch.nn.Sequential(self.torch.nn.Linear(64, 64), self.torch.nn.ReLU())
        x = self.torch.randn(256, 64)

        def step():
            y = model(x)
            for _ in range(softmaxes):
                y = self.torch.softmax(y, -1)
            y.sum().backward()
            time.sleep(sleep_s)

        return step

    def table(self, step):
        found, note = profile_step(step, CPU, ALONE, step_s=timed_block(step, 10, CPU) / 10)
        assert note == ""
        assert found.step_s == pytest.approx(found.idle_s + sum(row.seconds for row in found.rows))
        return found

    def test_operators_of_a_step_are_counted(self):
        found = self.table(self.step())
        known = {"matrix product", "matrix product backward", "softmax", "softmax backward"}
        assert known <= set(operations(found))
        assert [row.count for row in found.rows if row.kernel == "_softmax"] == [1]

    def test_operator_that_runs_more_often_is_said(self):
        old, new = self.table(self.step()), self.table(self.step(softmaxes=20))
        found = {each.operation: each.calls_text for each in profile_difference(old, new).rows}
        assert found["softmax"] == "1 -> 20"

    def test_work_of_the_profiler_is_neither_of_the_operators_nor_idle_time(self):
        """A step of 100 us took 200 us: 20 us for each of its four operators, outside of it, and 20 us more."""
        nested = [event("cpu_op", "aten::linear", 20, 80), event("cpu_op", "aten::addmm", 50, 30)]
        alone = [event("cpu_op", "aten::relu", 120, 20), event("cpu_op", "aten::sum", 170, 10)]
        window = event("user_annotation", WINDOW, 0.0, 200.0)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(profile, "MOST_OVERHEAD_S", 20e-6)
            found = table_of([window, *nested, *alone], host=True, steps=1, step_s=100e-6, profiled_s=200e-6)
        us = {row.kernel: row.seconds * 1e6 for row in found.rows}
        scale = 100 / 120
        assert us == pytest.approx(
            {k: v * scale for k, v in {"linear": 30, "addmm": 30, "relu": 20, "sum": 10}.items()}
        )
        assert found.idle_s * 1e6 == pytest.approx(30 * scale)

    def test_sleep_is_idle_time(self):
        old, new = self.table(self.step()), self.table(self.step(sleep_s=0.02))
        found = profile_difference(old, new)
        assert found.idle.change_s > max(abs(each.change_s) for each in found.rows)

    def test_step_that_is_too_long_is_not_profiled(self):
        found, note = profile_step(lambda: pytest.fail("ran"), CPU, ALONE, step_s=30.0)
        assert found is None
        assert note == "no kernel table: 6 steps take longer than 10 s"

    def test_trace_that_is_too_large_is_not_read(self, monkeypatch):
        monkeypatch.setattr(profile, "MAX_TRACE_BYTES", 10)
        found, note = profile_step(self.step(), CPU, ALONE, step_s=1e-3)
        assert found is None
        assert "to read" in note

    def test_profiler_inside_the_step_is_a_note(self):
        inner, step = self.torch.profiler.profile, self.step()

        def profiling():
            with inner(activities=[self.torch.profiler.ProfilerActivity.CPU]):
                step()

        found, note = profile_step(profiling, CPU, ALONE, step_s=0.01)
        assert (found, note) == (None, "no kernel table: another profiler runs in this process")

    def test_second_profiler_is_a_note(self):
        with self.torch.profiler.profile(activities=[self.torch.profiler.ProfilerActivity.CPU]):
            found, note = profile_step(self.step(), CPU, ALONE, step_s=1e-3)
        assert found is None
        assert note == "no kernel table: another profiler runs in this process"

    def test_step_that_fails_or_a_folder_that_is_gone_costs_the_table_alone(self, monkeypatch):
        found, note = profile_step(iter([]).__next__, CPU, ALONE, step_s=1e-3)  # its data are at their end
        assert (found, note) == (None, "no kernel table: the step failed under the profiler: StopIteration()")
        with monkeypatch.context() as patched:
            patched.setattr(profile.tempfile, "tempdir", "/proc")
            assert "no kernel table: [Errno" in profile_step(self.step(), CPU, ALONE, step_s=1e-3)[1]
        self.table(self.step())  # the profiler does not run on

    def test_other_devices_and_steps_without_torch_have_no_table(self, monkeypatch):
        assert profile_step(self.step(), IpuDevice(), ALONE, step_s=1e-3) == (None, "")
        monkeypatch.setattr(profile, "sys", SimpleNamespace(modules={}))
        assert profile_step(self.step(), CPU, ALONE, step_s=1e-3) == (None, "")


def profile_difference(old, new):
    from pytest_accel.stats.kernels import compare

    return compare(old, new, before_s=old.step_s, after_s=new.step_s)
