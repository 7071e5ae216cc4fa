"""What a matrix run says: a table, JSON, JUnit."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from rich.table import Table

from client.matrix import STEPS, Cell, Report
from stack.commands.terminal import one_line, safe, styled

STYLES = {"PASS": "green", "FAIL": "bold red", "SKIP": "yellow"}

# XML has no way to write these at all.
_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def table(cells: list[Cell]) -> Table:
    """One row a cell; seconds of each step, and why where it is no PASS."""
    drawn = Table(pad_edge=False)
    for name in ("provider", "harness", "verdict", "engine"):
        drawn.add_column(name, no_wrap=True)
    for name in STEPS:
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_column("total", justify="right", no_wrap=True)
    drawn.add_column("reason", overflow="fold")
    for cell in cells:
        drawn.add_row(
            styled(cell.provider),
            styled(cell.harness),
            styled(cell.verdict, STYLES[cell.verdict]),
            styled(cell.engine or ""),
            *(f"{cell.steps[name]:.1f}" if name in cell.steps else "" for name in STEPS),
            f"{cell.seconds:.1f}" if cell.steps else "",
            styled(one_line(cell.reason)),
        )
    return drawn


def junit(cells: list[Cell]) -> bytes:
    """The report as JUnit XML, one test case a cell."""
    report = Report.of(cells)
    suite = ET.Element(
        "testsuite",
        name="matrix",
        tests=str(len(cells)),
        failures=str(report.failed),
        skipped=str(report.skipped),
        errors="0",
        time=f"{sum(cell.seconds for cell in cells):.3f}",
    )
    for cell in cells:
        case = ET.SubElement(
            suite,
            "testcase",
            classname=f"matrix.{cell.provider}",
            name=cell.harness,
            time=f"{cell.seconds:.3f}",
        )
        told = _NOT_XML.sub("", safe(cell.reason))
        if cell.verdict == "FAIL":
            ET.SubElement(case, "failure", message=told).text = told
        elif cell.verdict == "SKIP":
            ET.SubElement(case, "skipped", message=told)
    return bytes(ET.tostring(suite, encoding="utf-8", xml_declaration=True))
