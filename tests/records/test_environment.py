"""What a record tells of the environment: what changes a framework, and nothing of the place."""

from pathlib import Path

import pytest

from ddl_tools.records.environment import relevant_variables


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OMP_NUM_THREADS", "4"),
        ("KMP_AFFINITY", "granularity=fine,compact,1,0"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
        ("NVIDIA_TF32_OVERRIDE", "0"),
        ("NCCL_SOCKET_IFNAME", "hsn0,hsn1"),
        ("GLOO_SOCKET_IFNAME", "lo"),
        ("HOROVOD_CONTROLLER", "mpi"),
        ("DS_ACCELERATOR", "cpu"),
        ("DALI_AFFINITY_MASK", "3,5"),
        ("UCX_TLS", "rc,sm"),
        ("LOADEDMODULES", "GCC/13.3.0:CUDA/12"),
        ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0"),
        ("TF_ENABLE_ONEDNN_OPTS", "0"),
        ("PYTHONTRACEMALLOC", "5"),
        ("XLA_FLAGS", "--xla_cpu_enable_fast_math=false"),
        ("XLA_DISABLE_PASSES", "cse"),
    ],
)
def test_what_changes_a_framework_is_told(name: str, value: str) -> None:
    assert relevant_variables({name: value}) == {name: value}


@pytest.mark.parametrize(
    "name",
    [
        *("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "HOSTNAME", "HOME", "USER", "PATH"),
        *("HOROVOD_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK", "HOROVOD_HOSTNAME"),
        *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT", "HOROVOD_SECRET_KEY"),
        *("NCCL_COMM_ID", "NCCL_HOSTID", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
        *("CUDA_HOME", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"),
        *("TORCHELASTIC_RUN_ID", "DDL_RESULTS", "SLURM_JOB_ID", "AWS_SECRET_ACCESS_KEY"),
        *("DS_TOKEN", "GITHUB_TOKEN", "TF_CLI_ARGS", "TF_VAR_region"),
        *("DS_APIKEY", "PS_MYTOKEN", "FI_PASSWD", "TORCH_DB_PASS", "JAX_OAUTH", "DALI_CREDS"),
        *(
            "DS_DBPASS",
            "PS_PASSCODE",
            "TF_MYPWD",
            "DS_COOKIE",
            "FI_SIGNATURE",
            "XLA_JWT",
            "PS_LOGINS",
        ),
    ],
)
def test_where_it_is_and_what_nobody_else_may_know_is_not(name: str) -> None:
    assert relevant_variables({name: "value"}) == {}


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("LD_PRELOAD", "/home/jane/lib/libjemalloc.so.2", "libjemalloc.so.2"),
        ("LD_PRELOAD", "/a/libone.so:/b/c/libtwo.so", "libone.so:libtwo.so"),
        ("HOROVOD_TIMELINE", "/scratch/jane/timeline.json", "timeline.json"),
        ("NCCL_DEBUG_FILE", str(Path.home()), ""),
        ("NCCL_NET_PLUGIN", f"{Path.home()}/plugin.so", "plugin.so"),
        ("UCX_META", "tcp://node7:29500,rc", "(address),rc"),
        ("NCCL_META", "10.1.2.3:29500", "(address)"),
        ("UCX_META", "https://jane:pass@host/x,rc", "(address),rc"),
        ("DS_META", "jane:pass@host", "(address)"),
        ("XLA_FLAGS", "--a=1 --api_token=abc --b", "--a=1 --api_token=(secret) --b"),
        ("DS_META", "ApiKey:abc,c=2", "ApiKey:(secret),c=2"),
        ("UCX_META", "10.1.0.0/16", "(address)"),
        ("NCCL_SOCKET_IFNAME", "enx001122aabbcc", "enx(address)"),
    ],
)
def test_values_tell_no_folder_and_no_address(name: str, value: str, shown: str) -> None:
    assert relevant_variables({name: value}) == {name: shown}
