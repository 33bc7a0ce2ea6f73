"""Energy of a window: GPU boards by NVML, processor packages by RAPL, else the reason why not."""
