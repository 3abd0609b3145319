"""Execute the notebooks and store their outputs: printed text and figures (`make notebooks`).

The cells run in one plain Python process, without Jupyter: `python docs/notebooks.py [NOTEBOOK…]`.
"""

from __future__ import annotations

import base64
import io
import json
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FOLDER = Path(__file__).parent.parent / "notebooks"


def execute(notebook: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a notebook with the outputs of its cells, and the names that its code has defined."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(compile("".join(cell["source"]), f"cell {count}", "exec"), names)
            cell = {**cell, "execution_count": count, "outputs": [*_text(printed.getvalue()), *_figures()]}
        cells.append(cell)
    return {**notebook, "cells": cells}, names


def _text(printed: str) -> list[dict[str, Any]]:
    if not printed:
        return []
    return [{"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)}]


def _figures() -> list[dict[str, Any]]:
    """Return the figures of a cell and close them."""
    outputs = []
    for number in plt.get_fignums():
        picture = io.BytesIO()
        plt.figure(number).savefig(picture, format="png", dpi=80, metadata={"Software": None})
        content = base64.b64encode(picture.getvalue()).decode()
        outputs.append({"data": {"image/png": content}, "metadata": {}, "output_type": "display_data"})
    plt.close("all")
    return outputs


def main() -> None:
    """Execute the named notebooks, or all of them, and write their outputs."""
    for path in [Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        began = time.perf_counter()
        executed, _ = execute(json.loads(path.read_text()))
        path.write_text(json.dumps(executed, indent=1, ensure_ascii=False) + "\n")
        sys.stdout.write(f"{path.name}: {time.perf_counter() - began:.0f} s\n")


if __name__ == "__main__":
    main()
