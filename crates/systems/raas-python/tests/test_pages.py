"""The blocks of Python in the pages are whole scripts: each runs to its end."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[4]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = sorted(ROOT.glob("docs/**/*.md")) + [ROOT / "README.md"]
BLOCKS = [(page.relative_to(ROOT), number, text) for page in PAGES for number, text in enumerate(BLOCK.findall(page.read_text()), 1)]


def test_pages_have_blocks():
    assert len(BLOCKS) >= 3


@pytest.mark.parametrize("text", [text for _, _, text in BLOCKS], ids=[f"{page}:{number}" for page, number, _ in BLOCKS])
def test_block_runs(text):
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
