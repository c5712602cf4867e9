"""``python -m xltrain``, the form that torchrun starts."""

from xltrain.cli import main

if __name__ == "__main__":
    main()
