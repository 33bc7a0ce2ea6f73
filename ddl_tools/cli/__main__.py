"""``python -m ddl_tools.cli``, for a checkout that is not installed."""

from ddl_tools.cli import main

if __name__ == "__main__":
    main(prog_name="ddl")
