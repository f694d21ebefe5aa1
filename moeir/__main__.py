"""`python -m moeir`, and what `torchrun -m moeir` starts."""

from moeir.cli import main

if __name__ == "__main__":
    main()
