"""``python -m fbtasks``."""

from fbtasks.cli import main

if __name__ == "__main__":
    main()
