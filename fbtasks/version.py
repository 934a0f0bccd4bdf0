"""The version of fbtasks. The package that is built has this one."""

VERSION = "0.1.0"
