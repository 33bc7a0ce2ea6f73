"""A package that hangs or crashes is a finding, not the end of the doctor."""

import sys
from importlib import metadata

import pytest

from ddl_tools.doctor import machine
from ddl_tools.doctor.finding import Finding, subjects
from ddl_tools.doctor.machine import ask, examine_packages
from ddl_tools.launch import interpreters


@pytest.mark.parametrize(
    ("code", "state", "words"),
    [
        ("print('noise'); say('1.2', 'with Gloo')", "ok", "1.2, with Gloo"),
        ("import a_package_that_is_not_there", "warn", "a_package_that_is_not_there"),
        ("say('1.2', 'sees no GPU'); remedy('another torch')", "warn", "sees no GPU"),
        ("import os; os.abort()", "warn", "exit code -6"),
        ("import time; time.sleep(60)", "warn", "over 1 s"),
        ("print('said nothing')", "warn", "exit code 0"),
    ],
)
def test_a_package_that_breaks_at_import_is_a_finding(monkeypatch, code, state, words):
    monkeypatch.setitem(machine.PROBES, "pydantic", code)  # installed for certain
    found = ask("pydantic", patience_s=1 if "sleep" in code else 30)
    assert found.state == state
    assert words in found.detail


@pytest.mark.parametrize(
    ("gpu", "nccl", "state", "words"),
    [
        (True, False, "bad", "1.2, with Gloo, no NCCL: cannot train on this machine's GPUs"),
        (True, True, "ok", "1.2, with Gloo NCCL"),
        (False, False, "ok", "1.2, with Gloo"),
    ],
)
def test_a_horovod_without_nccl_is_of_no_use_beside_a_gpu(
    monkeypatch, tmp_path, gpu, nccl, state, words
):
    files = {
        "torch.py": f"class cuda:\n    is_available = lambda: {gpu}\n",
        "horovod/__init__.py": "__version__ = '1.2'\n",
        "horovod/torch.py": "gloo_built = lambda: True\nmpi_built = lambda: False\n"
        f"nccl_built = lambda: {nccl}\n",
    }
    (tmp_path / "horovod").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(metadata, "version", lambda name: "1.2")  # installed or not
    found = ask("horovod", required=True)
    assert (found.state, found.detail) == (state, words)
    assert ("make horovod HOROVOD_GPU_OPERATIONS=NCCL" in found.remedy) is (state != "ok")


def test_only_what_is_needed_is_bad_when_it_is_missing(monkeypatch):
    def lacks(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", lacks)
    monkeypatch.setattr(machine, "_of_library", lambda name: Finding(name, "ok", "1.0"))
    found = examine_packages({"horovod"})
    assert subjects(found, "bad") == ["torch", "torchvision", "horovod", "papermill"]
    optional = [one for one in found if one.detail.startswith(machine.OPTIONAL)]
    assert [one.subject for one in optional] == ["deepspeed", "jupyterlab", "ipyparallel"]
    assert {one.state for one in optional} == {"ok"}


def test_what_nothing_asks_for_is_optional(monkeypatch, tmp_path):
    def version(name: str) -> str:
        if name == "torch":
            return "2.0"
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(machine, "PROBES", {})
    monkeypatch.setattr(interpreters, "PROJECT", tmp_path)
    for library in ("TENSORFLOW", "KERAS", "MXNET"):
        monkeypatch.delenv(f"DDL_PYTHON_{library}", raising=False)
    found = {one.subject: one for one in examine_packages({"horovod"})}
    assert found["horovod"].state == "bad"
    for name in ("deepspeed", "tensorflow", "keras", "mxnet", "jupyterlab"):
        assert found[name].state == "ok"
        assert found[name].detail.startswith("optional, not installed")
    assert "make tensorflow" in found["tensorflow"].detail
    assert found["dali"].state == "warn"  # a loader of the laptop study


def test_each_library_has_a_line_with_its_versions_or_its_target(monkeypatch, tmp_path):
    monkeypatch.setattr(interpreters, "PROJECT", tmp_path)
    monkeypatch.setenv("DDL_PYTHON_KERAS", sys.executable)
    monkeypatch.setenv("DDL_PYTHON_MXNET", "/no/python")
    monkeypatch.delenv("DDL_PYTHON_TENSORFLOW", raising=False)
    monkeypatch.setattr(interpreters, "_asked", lambda python: [str(tmp_path)])
    for name in ("keras", "jax", "jaxlib", "optax", *interpreters.COMMON):
        (tmp_path / f"{name}-1.2.dist-info").mkdir()
        (tmp_path / f"{name}-1.2.dist-info" / "METADATA").write_text(
            f"Name: {name}\nVersion: 1.2\n"
        )
    monkeypatch.setattr(machine, "ask", lambda name, _: Finding(name, "ok", "1.0"))
    lines = {one.subject: one for one in examine_packages(())}
    assert lines["keras"] == Finding(
        "keras", "ok", f"keras 1.2, jax 1.2, jaxlib 1.2, optax 1.2 for {sys.executable}"
    )
    assert lines["tensorflow"].state == "ok"
    assert lines["tensorflow"].detail.startswith("optional, not installed; to install it: make ten")
    assert lines["mxnet"].state == "warn"
    assert lines["mxnet"].detail == "DDL_PYTHON_MXNET = '/no/python' is not an executable file"


@pytest.mark.slow
def test_torch_is_asked_for_its_build():
    assert ask("torch").detail.startswith(metadata.version("torch").split("+")[0])
