"""Start ``adp-bench`` or ``python -m benchmark``; an interrupt during the imports prints one line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from benchmark.cli import run
    except KeyboardInterrupt:
        sys.stderr.write("adp-bench: interrupted\n")
        sys.exit(130)
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
