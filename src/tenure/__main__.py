"""`python -m tenure`."""

from tenure.cli.main import main

if __name__ == "__main__":
    main()
