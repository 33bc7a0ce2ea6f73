#!/usr/bin/env bash
# Print the CUDA of the DALI that `make env` installs: the newest that the driver here knows; without
# a driver the newest of all. CUDA 13 needs a driver of 580 or later, CUDA 12 one of 525 or later.
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
driver=${driver%%.*}
if ! [[ $driver =~ ^[0-9]+$ ]] || [ "$driver" -ge 580 ]; then
    echo cuda130
elif [ "$driver" -ge 525 ]; then
    echo cuda120
else
    echo cuda110
fi
