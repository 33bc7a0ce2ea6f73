"""``python -m ddl_core.cli``, for a checkout that is not installed."""

from ddl_core.cli import main

if __name__ == "__main__":
    main(prog_name="ddl")
