"""Values worked out by hand from the papers, independent of this code."""

import json
from pathlib import Path
from typing import Any

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden.json").read_text())
