"""The command line. Importing it loads click; everything heavier is loaded by the commands."""

from __future__ import annotations

from maskc.cli.app import main as main
