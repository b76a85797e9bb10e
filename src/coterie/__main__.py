"""``python -m coterie`` is the ``coterie`` command."""

import signal
import sys

from coterie.signals import signals_held


def main() -> None:
    """Run the command; whoever interrupts it while it is still being loaded sees no traceback."""
    try:
        with signals_held(signal.SIGINT):
            from coterie.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
