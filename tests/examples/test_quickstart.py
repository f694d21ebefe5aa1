"""Run the script behind `make demo` whole, with tiny weights and two steps."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_quickstart_runs_from_text_to_table_and_once_more_for_nothing(tiny_model: Path, tmp_path: Path) -> None:
    environment = os.environ | {"MOEIR": f"{sys.executable} -m moeir", "MODEL": str(tiny_model), "STEPS": "2", "PYTHON": sys.executable}
    for _ in range(2):
        completed = subprocess.run(
            ["bash", ROOT / "examples" / "quickstart.sh", tmp_path / "demo"],
            capture_output=True,
            text=True,
            env=environment,
            timeout=1800,
            check=False,
        )
        assert completed.returncode == 0, completed.stderr
    rows = [line.split() for line in completed.stdout.splitlines()]
    assert rows[0][:2] == ["run", "nDCG@10"]
    assert [row[0] for row in rows[2:]] == ["bm25", "lexical", "local", "global", "fused", "fused+bm25"]
    assert all(0.0 <= float(row[1]) <= 1.0 for row in rows[2:])
    assert float(rows[2][1]) > 0.3, "BM25 retrieves passages by their first sentences"
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert "fused+bm25" in page and "default-src 'none'" in page
    assert completed.stderr.count("already made") == 15, "the second run skips every finished stage"
