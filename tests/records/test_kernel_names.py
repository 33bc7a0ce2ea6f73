"""Names that profilers really printed, with their places; those cut off there are cut off here.

Issues are GitHub's. "DALI 2.4.0" and "nvJPEG 13.3" are the symbols of the installed libraries.
"""

import pytest

from ddl_tools.records.profiling import KINDS, kind

NAMES = {
    "allreduce": [
        # apache/tvm#16842: nsys, kernel summary
        "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm *, unsigned long, ncclWork *)",
        # NVIDIA/nccl#403: nsys, Horovod
        "ncclAllReduceRingLLKernel",
        # pytorch/kineto, tb_plugin/test/test_profiler.py: torch.profiler, DDP
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "nccl:all_reduce",
        "gloo:all_reduce",
    ],
    "communication": [
        # pytorch/pytorch#51382: nvprof, DDP
        "ncclReduceRingLLKernel_sum_f32(ncclColl)",
        # pytorch/kineto, tb_plugin/test/test_profiler.py
        "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)",
        "ncclDevKernel_Generic",  # NVIDIA/nccl, src/device/generate.py
        "nccl:broadcast",
    ],
    "data": [
        # DALI 2.4.0: resize, then crop, mirror and normalise
        "void dali::kernels::resampling::BatchedSeparableResampleKernel<2, unsigned char, float>("
        "int, dali::kernels::resampling::SampleDesc<2> const*, dali::kernels::BlockDesc<2> const*)",
        # nvJPEG 13.3
        "void nvjpeg::ycbcr_to_format_kernel_roi<(nvjpegChromaSubsampling_t)6, false,",
        "void nvimgcodec::ConvertNormKernel<",
        "void culj92::decode_kernel<(culj92::Timing)0>(unsigned short**, culj92::ImageInfo*,",
    ],
    "cudnn": [
        # pytorch/pytorch#81940: nsys, A100, cuDNN 8.3
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4_",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, (bool)1, (bool)1,",
        # apache/mxnet#14684: nvprof, V100
        "void nhwcToNchwKernel<float, float, float, bool=1, bool=0>(int, int, int, int,",
        # pytorch/pytorch#34977: nvprof, the weights' gradient
        "void wgrad2d_grouped_direct_kernel<__half, float, float, cudnnTensorFormat_t=1>(",
        # pytorch/pytorch#13412: nvprof, batch norm
        "void cudnn::detail::bn_fw_tr_1C11_singleread<float, int=512, bool=1, int=1, int=2,",
        # kblomdahl/dream-go#25: nvprof
        "maxwell_scudnn_winograd_128x128_ldg1_ldg4_relu_tile418n_nt",
    ],
    "other": [
        # pytorch/pytorch#51382: nvprof
        "void at::native::unrolled_elementwise_kernel<at::native::BUnaryFunctor<at::native",
        # The form is CUTLASS's; cuBLAS and cuDNN both have such kernels
        "void cutlass::Kernel<cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x64_32x6_nn_align8>(",
        # Not seen, made up of their sources: batch norm without cuDNN, Horovod's buckets
        "void at::native::batch_norm_transform_input_kernel<float, float, float, true, int>(",
        "void horovod::common::batched_memcpy_k<",
    ],
}


@pytest.mark.parametrize(
    ("expected", "name"), [(kind, name) for kind, names in NAMES.items() for name in names]
)
def test_kind_of_a_name_that_was_seen(expected: str, name: str) -> None:
    assert kind(name) == expected


def test_every_kind_has_been_seen() -> None:
    assert tuple(NAMES) == KINDS


@pytest.mark.parametrize("name", ["", "modality::fuse_kernel", "triton_poi_fused_add_relu_0"])
def test_part_of_a_word_is_no_sign(name: str) -> None:
    assert kind(name) == "other"
