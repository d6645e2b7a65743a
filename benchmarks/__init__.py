"""Measurements of Weft against its peers; run as `python -m benchmarks.<name>`.

They measure the planner's own choices, with no trial: schedules that were found before, those that ship too, are not
used. `WEFT_RECORDS=1` uses them; `benchmarks.tuning` measures what they gain.
"""

import os

os.environ.setdefault("WEFT_RECORDS", "0")
