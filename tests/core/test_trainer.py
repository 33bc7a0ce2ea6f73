"""The core trains in a plain process, without records, tables and command line."""

import re
import subprocess
import sys

from ddl_tools.records.paths import README

FORBIDDEN = ("pandas", "papermill", "click", "matplotlib")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_itself_imports_nothing_large() -> None:
    loaded = python("import sys, ddl_core; print(*sys.modules)").split()
    assert {"torch", "numpy", "pydantic", *FORBIDDEN}.isdisjoint(loaded)


def test_the_lines_of_the_readme_train_an_epoch() -> None:
    (lines,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    more = f"""
import sys
assert (result.steps, result.samples) == (4, 256)
assert result.top1 is None
evaluation = trainer.evaluate()
assert 0 <= evaluation.top1 <= evaluation.top5 <= 1
digest = trainer.weights_sha256()
trainer.train_epoch(1)
assert trainer.weights_sha256() != digest
trainer.close()
assert not {{*{FORBIDDEN!r}}} & {{*sys.modules}}
"""
    said = python(lines.replace("train_images=256", "train_images=256, eval_images=64") + more)
    assert re.fullmatch(r"\d+ images/s, loss \d+\.\d+\n", said)
