"""Everything around a run: start, watch and record it, compare it with others, draw figures."""

from ddl_core.registry import MODELS, OPTIONS, Entry

# The emulated cluster is a plug-in like those of other packages, which use entry points.
OPTIONS["emu"] = "ddl_tools.emulation.options:Emulated"
MODELS["paced_resnet50"] = Entry(
    "ddl_tools.emulation.network:paced_resnet50", "paced ResNet50", of_run=True
)
