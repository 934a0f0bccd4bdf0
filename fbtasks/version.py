"""The version of fbtasks."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("fbtasks")
except PackageNotFoundError:  # run from a checkout that is not installed
    VERSION = "0"
