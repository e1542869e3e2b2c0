"""`python -m cablestore` is the command line."""

from cablestore.cli import main

if __name__ == "__main__":
    main()
