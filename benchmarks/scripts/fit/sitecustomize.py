"""Lets a script import torchvision where its wheel was built for CUDA and torch was not."""

import ddl_core.models  # noqa: F401
