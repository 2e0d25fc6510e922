"""``python -m milecastle`` is the command line."""

from milecastle.cli.main import main

if __name__ == "__main__":
    main()
