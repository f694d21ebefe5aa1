"""Entry point of `python -m moeir` and `torchrun -m moeir`."""

from moeir.cli import main

if __name__ == "__main__":
    main()
