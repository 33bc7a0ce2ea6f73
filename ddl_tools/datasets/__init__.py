"""Make, list and verify image folders; no torch."""

PUBLIC_SETS = ("fashion_mnist", "cifar10", "digits")  # what `ddl data import` knows
