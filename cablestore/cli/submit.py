"""Script for spark-submit: `spark-submit .../cablestore/cli/submit.py EXPORT... --out STORE` runs `cablestore reindex`.

`python -m cablestore.cli.submit` prints the path of this file.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    own_folder = str(Path(__file__).resolve().parent)
    # Python puts this script's folder first on sys.path, where its modules would hide packages with the same names.
    sys.path[:] = [entry for entry in sys.path if not entry or str(Path(entry).resolve()) != own_folder]

    from cablestore.cli import main

    if len(sys.argv) == 1:
        print(Path(own_folder) / "submit.py")
    else:
        main(["reindex", *sys.argv[1:]])
