"""``python -m coterie.deploy.warm``: a ``flower-superexec`` whose client apps start at once.

It takes the arguments of ``flower-superexec``.
"""

from __future__ import annotations

import sys

from coterie.errors import CoterieError


def main() -> int:
    """The command; its exit code."""
    try:
        from coterie.engines.flower_warm import keep_warm

        return keep_warm(sys.argv[1:])
    except CoterieError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
